"""The figure of ``dlgs-bench compare``: the speed-ups of several sets side by side. No torch."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dlgs_bench import looks
from dlgs_bench.report import compare, style

PANEL_IN, ROW_IN = 4.0, 0.42  # width of a panel, and height of a speed-up's row
APART = 0.7  # of a row's height, over which its sets are spread

Sets = list[tuple[str, pd.DataFrame]]


def draw(sets: Sets) -> Figure:
    """A panel for each model, topology and number of workers of the first set: all sets' speed-ups and intervals.

    ``sets``: (name, summary as ``compare.read`` returns it). Disturbed runs are left out.
    """
    name, first = sets[0]
    methods = first[first["variant"] != "none"]
    cells = [rows for _, rows in methods.groupby(["model", "batch", "topology", "workers"], sort=False)]
    if not cells:
        raise ValueError(f"{name}: it has no method besides uncompressed, so there is nothing to draw")
    figure, panels = style.panels(len(cells), PANEL_IN, 0.8 + ROW_IN * max(map(len, cells)))
    for axes, cell in zip(panels, cells, strict=True):
        _draw_cell(axes, cell, sets)
    style.legend_of(figure, panels)
    return figure


def _draw_cell(axes: Axes, cell: pd.DataFrame, sets: Sets) -> None:
    keys = [*compare.SAME, "swept_mbit"]
    cell = cell.sort_values(["variant", "ratio"], ascending=[True, False], ignore_index=True)
    drawn = []  # the sets that the panel has, each with its look
    for index, (name, table) in enumerate(sets):
        own = cell[keys].reset_index().merge(table[table["disturbed"].isna()], on=keys)
        if len(own):
            drawn.append((own, looks.line(index, name) | {"linestyle": ""}))
    for place, (own, look) in enumerate(drawn):
        ends = style.whiskers(*(own[f"speedup{end}"] for end in ("", "_low", "_high")))
        places = own["index"] + APART * ((place + 0.5) / len(drawn) - 0.5)
        axes.errorbar(own["speedup"], places, xerr=ends, elinewidth=0.9, **look)
    axes.axvline(1, color="0.4", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    style.plain_log(axes.xaxis, subs=(1, 1.5, 2, 3, 5, 7))
    rows = cell.to_dict("records")
    axes.set_yticks(range(len(rows)), [compare.method(row) for row in rows])
    axes.set_yticks([place + 0.5 for place in range(len(rows) - 1)], minor=True)
    axes.grid(axis="y", which="minor", color="0.9")
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    model, batch, workers = (rows[0][key] for key in ("model", "batch", "workers"))
    axes.set_title(f"{model}, batch {batch:g}; {compare.place(rows[0])}, {workers} workers", fontsize="medium")
    axes.set_xlabel("speed-up over uncompressed")
    style.open_frame(axes)
