"""Prediction, drawn: predicted against measured iteration in ms, one point per timing run; dashed lines: 10 % off.

Full: paired, with computation scaled to the machine's speed in the run. Hollow: from the calibration only. The two full
points with the largest error are named."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.topology import TOPOLOGIES

WORST = 2  # points that are named


def points(axes: Axes, table: pd.DataFrame, names: Names) -> None:
    """Draw the runs of each variant: paired, and from the calibration only."""
    for variant in names.variants_in(table["variant"]):
        rows = table[table["variant"] == variant]
        look = style.of_variant(variant, names) | {"linestyle": "", "markersize": 6, "alpha": 0.8}
        axes.plot(rows["measured_s"] * 1e3, rows["paired_s"] * 1e3, **look)
        look |= {"label": None, "fillstyle": "none", "alpha": 0.5}
        axes.plot(rows["measured_s"] * 1e3, rows["predicted_s"] * 1e3, **look)


def name_worst(axes: Axes, table: pd.DataFrame, names: Names, middle_ms: float) -> None:
    """Name the points with the largest errors, on the side that has more space."""
    worst = table.loc[table["paired_error"].abs().nlargest(WORST).index]
    for row in worst.drop_duplicates(["model", "topology"]).to_dict("records"):
        words = f"{names.model(row['model'])}, {TOPOLOGIES[row['topology']].title}"
        x, y = row["measured_s"] * 1e3, row["paired_s"] * 1e3
        side = {"ha": "right", "xytext": (-5, 3)} if x > middle_ms else {"ha": "left", "xytext": (5, -9)}
        axes.annotate(words, (x, y), textcoords="offset points", fontsize=7, **side)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    figure, axes = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
    every = table[["predicted_s", "paired_s", "measured_s"]].to_numpy() * 1e3
    low, high = np.nanmin(every), np.nanmax(every)
    ends = [low * 0.8, high * 1.25]
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    for off in (0.9, 1.1):
        axes.plot(ends, [off * end for end in ends], color="0.4", linewidth=0.6, linestyle="--")
    points(axes, table, names)
    quiet = captions.undisturbed(table)
    name_worst(axes, quiet, names, middle_ms=(low * high) ** 0.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        style.plain_log(axis)
    axes.set_xlim(ends)
    axes.set_ylim(ends)
    axes.set_aspect("equal")
    axes.set_xlabel("measured iteration (ms)")
    axes.set_ylabel("predicted iteration (ms)")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, fontsize=9 if table["variant"].nunique() <= 6 else 7)
    style.open_frame(axes)
    note = f"{captions.setting(table)}; n = {quiet['predicted_s'].count()} timing runs; error, paired: "
    note += f"{captions.off(table, 'paired_error')}; error, calibration alone: {captions.off(table, 'error')}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
