"""The time of one iteration against the rate of the links, per variant: measured, and by the time model.

Points: timing runs over the testbed, whiskers: where a repeat lies, 19 times in 20. Lines: eqs 2-7 with the costs
calibrated at one rate (dotted vertical line); the bytes on the link take their time at each rate, the
processors' part of a communication stays. Uncompressed is its own run at each rate."""

from pathlib import Path

import pandas as pd

from harness.report import captions, looks
from harness.report.log import log_errors
from harness.report.names import Names, at_ratio, data_title
from harness.timemodel.predict import Calibrations, Elsewhere


def draw(axes, look: dict, rows: pd.DataFrame, predict: Elsewhere, ticks: list[float]) -> None:
    """One variant: its runs as points, the time model as a line through all rates."""
    looks.measured(axes, look, rows["rate_mbit"], rows, "iteration_s", 1e3)
    rates = looks.between(ticks)
    looks.predicted(axes, look, rates, [predict.iteration_s(predict.here[0], rate) * 1e3 for rate in rates])


def finish(axes, ticks: list[float], calibrated_at: float) -> None:
    axes.axvline(calibrated_at, color="0.6", linestyle=":", linewidth=0.8)
    axes.set_yscale("log")
    looks.plain_log(axes.yaxis)
    looks.rate_axis(axes, ticks)
    axes.set_ylabel("time of one iteration (ms)")
    axes.grid(alpha=0.3, which="both")
    looks.open_frame(axes)


def main() -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    ratio = table["ratio"].dropna().min()
    known = Calibrations(Path(run).parent for run in snakemake.input.calibration).elsewhere(ratio)
    models, ticks = names.models_in(table["model"]), sorted(table["rate_mbit"].unique())
    figure, panels = looks.panels(len(models), 4.4, 3.5)
    for axes, model in zip(panels, models, strict=True):
        of_model = table[table["model"] == model]
        for variant in names.variants_in(of_model["variant"]):
            rows, predict = of_model[of_model["variant"] == variant], known[model, variant]
            draw(axes, looks.of_variant(variant, names), rows, predict, ticks)
        finish(axes, ticks, predict.here[1])
        axes.set_title(f"{names.model(model)}, {data_title(of_model.iloc[0])}{at_ratio(ratio)}", fontsize=9)
    looks.legend(figure, *panels[0].get_legend_handles_labels())
    looks.save(figure, captions.over_rates(table), snakemake.output)


main()
