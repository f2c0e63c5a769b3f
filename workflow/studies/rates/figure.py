"""The time of one iteration against the rate of the links, per variant: measured, and by the time model.

Points: timing runs over the testbed, whiskers: where a repeat lies, 19 times in 20. Lines: eqs 2-7 with the costs
calibrated at one rate (dotted vertical line); the bytes on the link take their time at each rate, the
processors' part of a communication stays. Uncompressed is its own run at each rate."""

from pathlib import Path

import numpy as np
import pandas as pd

from harness.report import captions, looks
from harness.report.log import log_errors
from harness.report.names import Names, at_ratio, data_title
from harness.timemodel.predict import Calibrations, Elsewhere


def draw(axes, look: dict, rows: pd.DataFrame, predict: Elsewhere, rates: np.ndarray) -> None:
    """One variant: its runs as points, the time model as a line through all rates."""
    rows = rows.sort_values("rate_mbit")
    y, least, most = (rows[column] * 1e3 for column in ("iteration_s", "iteration_s_low", "iteration_s_high"))
    axes.errorbar(rows["rate_mbit"], y, yerr=looks.whiskers(y, least, most), capsize=2, elinewidth=0.8,
                  **look | {"linestyle": ""})  # fmt: skip
    curve = [predict.iteration_s(predict.here[0], rate) * 1e3 for rate in rates]
    axes.plot(rates, curve, **look | {"marker": "", "label": None, "linewidth": 1})


def finish(axes, ticks: list[float], calibrated_at: float) -> None:
    axes.axvline(calibrated_at, color="0.6", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    looks.plain_log(axes.yaxis)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("rate of every link (Mbit/s)")
    axes.set_ylabel("time of one iteration (ms)")
    axes.grid(alpha=0.3, which="both")
    looks.open_frame(axes)


def main() -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    ratio = table["ratio"].dropna().min()
    known = Calibrations(Path(run).parent for run in snakemake.input.calibration).elsewhere(ratio)
    models = names.models_in(table["model"])
    figure, panels = looks.panels(len(models), 4.4, 3.5)
    ticks = sorted(table["rate_mbit"].unique())
    rates = np.geomspace(ticks[0] / 1.5, ticks[-1] * 1.5, 60)
    for axes, model in zip(panels, models, strict=True):
        of_model = table[table["model"] == model]
        for variant in names.variants_in(of_model["variant"]):
            rows, predict = of_model[of_model["variant"] == variant], known[model, variant]
            draw(axes, looks.of_variant(variant, names), rows, predict, rates)
        finish(axes, ticks, predict.here[1])
        axes.set_title(f"{names.model(model)}, {data_title(of_model.iloc[0])}{at_ratio(ratio)}", fontsize=9)
    looks.legend(figure, *panels[0].get_legend_handles_labels())
    first = table.iloc[0]
    note = f"{first['machine']}; testbed; {first['engine']}, {first['workers']} workers; n = "
    note += f"{captions.least_to_most(table['blocks'])} blocks a point, whiskers: where a repeat lies, 19 times in 20"
    looks.save(figure, note, snakemake.output)


main()
