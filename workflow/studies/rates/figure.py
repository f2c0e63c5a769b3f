"""Link rates: the time of one iteration against the rate of the links, per variant: measured, and by the time model.

One panel per model and kind of selection. Points: timing runs over the testbed. Whiskers: the 95 % interval of a
repeat. Lines: the time model (equations 2 to 7 of the paper) with costs calibrated at one rate (dotted vertical line).
The bytes on the link take their time at each rate; the processor's part of a communication does not change. Without a
calibration there are only points. Uncompressed is one run at each rate: with plain torch selection it takes turns with
the methods, with compiled selection it is the same run again. Dashed: the bound, which is the shortest forward and
backward pass of the model."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio, data_title
from dlgs_bench.timemodel.predict import SELECTIONS, Calibrations, Projection


def draw(axes: Axes, look: dict, rows: pd.DataFrame, predict: Projection | None, ticks: list[float]) -> None:
    """Draw one variant: its runs as points, and the time model as a line over all rates."""
    style.measured(axes, look, rows["rate_mbit"], rows, "iteration_s", 1e3)
    if predict and predict.is_at(rows["ratio"].iloc[0]):
        rates, network = style.between(ticks), replace(predict.here, latency_ms=rows["latency_ms"].fillna(0).iloc[0])
        seconds = [predict.iteration_s(replace(network, rate_mbit=rate)) for rate in rates]
        style.predicted(axes, look, rates, [1e3 * s for s in seconds])
        # All variants are calibrated at one rate; the legend shows the line once.
        axes.axvline(predict.here.rate_mbit, color="0.6", linestyle=":", linewidth=0.8, label="rate of the calibration")


def finish(axes: Axes, ticks: list[float], bound_s: float) -> None:
    axes.axhline(bound_s * 1e3, **style.BOUND)
    axes.set_yscale("log")
    style.plain_log(axes.yaxis)
    style.rate_axis(axes, ticks)
    axes.set_ylabel("time of one iteration (ms)")
    axes.grid(alpha=0.3, which="both")
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    calibrations = Calibrations(Path(run).parent for run in snakemake.input.calibration)
    ticks = sorted(table["rate_mbit"].unique())
    kinds = [kind for kind in SELECTIONS if (table["selection"] == kind).any()] or SELECTIONS[:1]
    panes = list(product(names.models_in(table["model"]), kinds))
    figure, panels = style.panels(len(panes), 4.4, 3.5, most=2)
    for axes, (model, kind) in zip(panels, panes, strict=True):
        here = table[(table["model"] == model) & (table["selection"].isna() | (table["selection"] == kind))]
        for variant in names.variants_in(here["variant"]):
            rows = here[here["variant"] == variant]
            projections = calibrations.projections(rows["ratio"].iloc[0], selection=kind)
            draw(axes, style.of_variant(variant, names), rows, projections.get((model, variant)), ticks)
        if snakemake.input.calibration:
            axes.plot([], [], **style.MODEL)
        finish(axes, ticks, here["bound_s"].min())
        ratios = here["ratio"].dropna().unique()
        one_ratio = at_ratio(ratios[0]) if len(ratios) == 1 else ""
        axes.set_title(f"{names.model(model)}, {data_title(here.iloc[0])}{one_ratio}, selection {kind}", fontsize=8)
    style.legend_of(figure, panels)
    style.save(figure, captions.over_rates(table, modelled=bool(snakemake.input.calibration)), snakemake)


if __name__ == "__main__":
    main(snakemake)
