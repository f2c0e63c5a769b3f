"""Speed-up with a server: a method's speed-up over uncompressed with a parameter server, against the rate of the links.

Points: measured. Whiskers: the 95 % interval of a repeat. Lines: the time model (equations 2 to 7 of the paper) with
costs calibrated at the fastest rate; without a calibration there are only points. If workers pull dense weights and
links are slow, uncompressed takes the time of a dense push and a dense pull, and every method takes at least the time
of the dense pull: no speed-up can exceed 2 (dashed, with its value). The other dashed line is the bound of a method: an
iteration as long as the shortest forward and backward pass. Dotted: the paper's largest speed-up, 1.99."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio, data_title
from dlgs_bench.timemodel.predict import Calibrations, Projection
from dlgs_bench.topology import TOPOLOGIES, Topology

CEILING, PAPER = 2.0, 1.99


def draw(
    axes: Axes, look: dict, rows: pd.DataFrame, dense: Projection | None, own: Projection | None, ticks: list[float]
) -> None:
    """Draw one variant: measured speed-ups as points, and predicted speed-ups as a line if it was calibrated."""
    style.measured(axes, look, rows["rate_mbit"], rows, "speedup")
    if not (dense and own):
        return
    rates = style.between(ticks)
    networks = [replace(own.here, rate_mbit=rate) for rate in rates]
    curve = [dense.iteration_s(there) / own.iteration_s(there) for there in networks]
    style.predicted(axes, look, rates, curve)


def finish(axes: Axes, ticks: list[float], topology: Topology, bound: pd.Series) -> None:
    """``bound``: by rate, the speed-up of an iteration as long as the shortest forward and backward pass."""
    if topology.owner == "server":
        for value, dash, words, points in (
            (CEILING, "--", "2: the ceiling", 4),
            (PAPER, ":", "1.99: the paper's largest", -4),
        ):
            axes.axhline(value, color="0.3", linestyle=dash, linewidth=0.8)
            axes.annotate(
                words, (0.99, value), (0, points), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                ha="right", va="bottom" if points > 0 else "top", fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8}, zorder=3,
            )  # fmt: skip
    axes.set_ylim(0, max(CEILING * 1.15, axes.get_ylim()[1]))
    if (bound < axes.get_ylim()[1]).sum() > 1:  # one rate makes no line; over slow links it is far above the axis
        axes.plot(bound.index, bound, **style.BOUND)
    style.rate_axis(axes, ticks)
    axes.set_ylabel("speed-up against uncompressed")
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input.table)
    calibrations = Calibrations(Path(run).parent for run in [*snakemake.input.layers, *snakemake.input.exchanges])
    ticks = sorted(table["rate_mbit"].unique())
    topologies = sorted(table["topology"].unique())
    panes = list(product(names.models_in(table["model"]), topologies))
    figure, panels = style.panels(len(panes), 4.6, 3.4)
    for axes, (model, name) in zip(panels, panes, strict=True):
        topology, rows = TOPOLOGIES[name], table[(table["model"] == model) & (table["topology"] == name)]
        ratio = rows["ratio"].dropna().min()
        projections = {key: one for key, one in calibrations.projections(ratio, topology).items() if one.is_at(ratio)}
        for variant in names.variants_in(rows["variant"]):
            if variant != "none":
                own, look = rows[rows["variant"] == variant], style.of_variant(variant, names)
                draw(axes, look, own, projections.get((model, "none")), projections.get((model, variant)), ticks)
        if projections:
            axes.plot([], [], **style.MODEL)
        dense = rows[rows["variant"] == "none"].set_index("rate_mbit").sort_index()
        finish(axes, ticks, topology, dense["iteration_s"] / dense["bound_s"])
        title = f"{names.model(model)}, {data_title(rows.iloc[0])}{at_ratio(ratio)}; {topology.title}"
        axes.set_title(title, fontsize=8)
    style.legend_of(figure, panels)
    note = captions.over_rates(table, "; and a server", modelled=bool(snakemake.input.exchanges))
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
