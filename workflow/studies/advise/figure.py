"""Advice, drawn: the speed-up over uncompressed that the time model predicts, against the rate of the links.

Lines: the time model (equations 2 to 7 of the paper) with costs calibrated on this machine, without a timing run. Dense
sums use the fastest collective. Thick: the smallest ratio. Dotted: the requested rate. Above 1, compression pays; below
1, it costs time. Grey: closer to 1 than the error of such predictions, so neither a gain nor a loss is significant.
Dashed: the bound, an iteration that only computes."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.config.grid import layers_name
from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio
from dlgs_bench.timemodel import advice, iterations
from dlgs_bench.timemodel.checked_range import outside_checked
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.predict import Calibrations, Projection
from dlgs_bench.timemodel.slowdown import slowdowns
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES

AWAY = np.geomspace(1 / 30, 30, 61)  # link rates, divided by the requested rate
BOUND_SHOWN = 1.5  # the bound is drawn up to this multiple of the highest line


def draw(axes: Axes, here: list[Projection], names: Names, there: Network, slowdown: float, factor: float) -> None:
    """Draw all variants of one model over one topology, at each of their ratios, and the error of such predictions."""
    rates = there.rate_mbit * AWAY
    networks = [replace(there, rate_mbit=rate) for rate in rates]

    def seconds(projection: Projection) -> np.ndarray:
        return np.array([iterations.fastest_s(projection, one, slowdown) for one in networks])

    dense = next(seconds(projection) for projection in here if projection.spec.scheme.method == "none")
    outside = [bool(outside_checked(one, dense_s, slowdown)) for one, dense_s in zip(networks, dense, strict=True)]
    off = np.where(outside, factor**2, factor)
    axes.fill_between(rates, 1 / off, off, step="mid", color="0.9", linewidth=0, zorder=0)
    ratios = sorted({projection.spec.ratio for projection in here if projection.spec.ratio})
    for variant in names.variants_in(
        projection.spec.variant for projection in here if projection.spec.scheme.method != "none"
    ):
        own = [projection for projection in here if projection.spec.variant == variant]
        for projection in sorted(own, key=lambda projection: projection.spec.ratio or 0):
            index = ratios.index(projection.spec.ratio) if projection.spec.ratio else 0
            look = style.of_variant(variant, names, index) | {"marker": ""}
            look["label"] += at_ratio(projection.spec.ratio)
            axes.plot(rates, dense / seconds(projection), **look)
    highest = max((line.get_ydata().max() for line in axes.lines), default=1.0)
    bound = dense * slowdown / min(projection.computing_s for projection in here)
    axes.plot(
        rates,
        np.where(bound < BOUND_SHOWN * highest, bound, np.nan),
        **style.BOUND | {"label": "computing alone (bound)"},
    )


def finish(axes: Axes, title: str, asked_mbit: float) -> None:
    axes.axhline(1, color="0.4", linewidth=0.8)
    axes.axvline(asked_mbit, color="0.4", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_log(axes.xaxis, subs=(1,))
    style.plain_log(axes.yaxis)
    axes.set_xlabel("rate of every link there (Mb/s)")
    axes.set_ylabel("speed-up against uncompressed")
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, there = Names.of(snakemake), Network(**snakemake.params.there)
    slower = slowdowns(snakemake.input.rates)
    factor = advice.interval(pd.read_csv(snakemake.input.checked))
    panes = defaultdict(list)
    for projection in Calibrations(Path(run).parent for run in snakemake.input.calibration).each():
        panes[projection.spec.training.model, projection.spec.scheme.topology].append(projection)
    order = names.models_in(model for model, _ in panes)
    figure, panels = style.panels(len(panes), 4.6, 3.5)
    for axes, pane in zip(panels, sorted(panes, key=lambda pane: order.index(pane[0])), strict=True):
        model, topology = pane
        slowdown = slower.get(layers_name(panes[pane][0].spec), 1.0)
        draw(axes, panes[pane], names, there, slowdown, factor)
        over = "" if topology == ALL_GATHER.name else f", {TOPOLOGIES[topology].title}"
        finish(axes, names.model(model) + over, there.rate_mbit)
    style.legend_of(figure, panels)
    note = f"time model alone, from calibrations on {captions.machines(snakemake.input.calibration)}; "
    note += f"{there.workers} workers, {there.latency_ms:g} ms from host to host; n = 0 measurements there; "
    note += f"grey: a factor of {factor:.2f}, within which at least 9 of 10 "
    style.save(figure, f"{note}predicted speed-ups were where they were checked, and its square elsewhere", snakemake)


if __name__ == "__main__":
    main(snakemake)
