"""The figure of ``dlgs-bench compare``: the speed-ups of several sets side by side. No torch."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from dlgs_bench import looks
from dlgs_bench.report import compare
from dlgs_bench.topology import TOPOLOGIES

PANELS_PER_ROW = 3
ROW_IN = 0.42  # height of a speed-up's row
APART = 0.7  # of a row's height, over which its sets are spread

Sets = list[tuple[str, pd.DataFrame]]


def draw(sets: Sets) -> Figure:
    """A panel for each model, topology and number of workers of the first set: all sets' speed-ups and intervals.

    ``sets``: (name, summary as ``compare.read`` returns it). Disturbed runs are left out.
    """
    first = sets[0][1]
    methods = first[first["variant"] != "none"]
    cells = [rows for _, rows in methods.groupby(["model", "batch", "topology", "workers"], sort=False)]
    if not cells:
        raise ValueError(f"{sets[0][0]}: it has no method besides uncompressed, so there is nothing to draw")
    down = -(-len(cells) // PANELS_PER_ROW)
    tallest = max(map(len, cells))
    figure = Figure(figsize=(12, 0.5 + down * (0.9 + ROW_IN * tallest)), layout="constrained")
    panels = figure.subplots(down, min(PANELS_PER_ROW, len(cells)), squeeze=False).flatten()
    for axes, cell in zip(panels, cells, strict=False):
        _draw_cell(axes, cell, sets)
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _draw_cell(axes: Axes, cell: pd.DataFrame, sets: Sets) -> None:
    keys = [*compare.SAME, "swept_mbit"]
    cell = cell.sort_values(["variant", "ratio"], ascending=[True, False], ignore_index=True)
    for index, (name, table) in enumerate(sets):
        own = cell[keys].reset_index().merge(table[table["disturbed"].isna()], on=keys)
        low, high = ((own[f"speedup_{end}"] - own["speedup"]).abs().fillna(0) for end in ("low", "high"))
        places = own["index"] + APART * ((index + 0.5) / len(sets) - 0.5)
        axes.errorbar(
            own["speedup"], places, xerr=np.array([low, high]), elinewidth=0.9,
            **looks.line(index, name) | {"linestyle": ""},
        )  # fmt: skip
    axes.axvline(1, color="0.4", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    rows = cell.to_dict("records")
    axes.set_yticks(range(len(rows)), [compare.method(row) for row in rows])
    axes.set_yticks([place + 0.5 for place in range(len(rows) - 1)], minor=True)
    axes.grid(axis="y", which="minor", color="0.9")
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    model, batch, topology, workers = (rows[0][key] for key in ("model", "batch", "topology", "workers"))
    where = TOPOLOGIES[topology].title if topology in TOPOLOGIES else topology
    axes.set_title(f"{model}, batch {batch:g}; {where}, {workers} workers", fontsize="medium")
    axes.set_xlabel("speed-up over uncompressed")
    axes.spines[["top", "right"]].set_visible(False)
