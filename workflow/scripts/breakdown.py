"""Stacked bars of the parts of one iteration in ms, per variant and ratio; one panel per model, topology and workers.

Dotted: the fastest uncompressed in the same run. On the right: the iteration and the speed-up over this
uncompressed. Dashed: the lower limit, the shortest forward and backward pass in the panel. Communication: the time
that a worker waits for communication after backward. Computation takes longer if communication overlaps with it,
because sending needs a core too. The scales of the panels differ, because other topologies are timed with other
links and workers."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench import looks
from dlgs_bench.report import captions, style, tables
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title, label
from dlgs_bench.report.summary import SETTING, summarise
from dlgs_bench.topology import TOPOLOGIES

BAR = 0.6  # height, of a row's
COLUMNS = (44, 80)  # where time and speed-up end, in points from the panel


def bars(table: pd.DataFrame, names: Names, fastest_first: bool) -> list[tuple[str, pd.Series]]:
    """(label, row) from top to bottom: by time, or in the configuration's order with ratios from the highest."""
    ranks = table["variant"].map(names.variants_in(table["variant"]).index)
    keys = ["iteration_s"] if fastest_first else ["b", "a"]
    order = table.assign(a=-table["ratio"], b=ranks).sort_values(keys, na_position="first").index
    return [(label(row, names), row) for _, row in table.loc[order].iterrows()]


def stack(axes: Axes, y: int, row: pd.Series) -> None:
    """Draw one iteration as a bar of its parts, with its interval below the bar, uncompressed of the same run as a
    dotted line, and the time and speed-up in columns on the right."""
    left = 0.0
    for part, (columns, colour, hatch) in looks.PARTS.items():
        width = row[columns].sum() * 1e3
        axes.barh(y, width, BAR, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
                  label=part if y == 0 else None)  # fmt: skip
        left += width
    low, high = row["iteration_s_low"] * 1e3, row["iteration_s_high"] * 1e3
    if pd.notna(low):  # one block has no spread
        interval = [[max(0, left - low)], [max(0, high - left)]]
        axes.errorbar(left, y + BAR / 2 + 0.1, xerr=interval, color="black", capsize=2, lw=0.8)
    dense = row["dense_s"] * 1e3
    if row["variant"] != "none":
        dotted = {"color": "black", "linestyle": ":", "linewidth": 1.5, "label": "uncompressed in the same run"}
        axes.plot([dense, dense], [y - BAR / 2, y + BAR / 2], **dotted)
    words = [f"{left:.0f} ms", f"{style.TIMES}{row['speedup']:.2f}"]
    for text, points in zip(words, COLUMNS, strict=True):
        write_right(axes, y, text, points, "right")
    if pd.notna(row["disturbed"]):
        write_right(axes, y, "disturbed", COLUMNS[-1] + 6, "left")


def write_right(axes: Axes, y: int, text: str, points: float, side: str) -> None:
    """Write text on the right of the panel, ``points`` points from its edge."""
    axes.annotate(text, (1, y), (points, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points", ha=side,
                  va="center", fontsize=8)  # fmt: skip


def draw(axes: Axes, rows: list[tuple[str, pd.Series]]) -> None:
    """Draw the bars of one panel."""
    for y, (_, row) in enumerate(rows):
        stack(axes, y, row)
    bound_ms = rows[0][1]["bound_s"] * 1e3
    axes.axvline(bound_ms, **style.BOUND)
    axes.set_yticks(range(len(rows)), [words for words, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.5)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, timing = Names.of(snakemake), pd.read_csv(snakemake.input.tidy)
    table = summarise(timing[timing["model"].isin(np.atleast_1d(snakemake.params.model))])
    fastest_first = getattr(snakemake.params, "fastest_first", False)  # the study of methods has too many to search
    panes = [bars(rows, names, fastest_first) for _, rows in table.groupby(SETTING, sort=False)]
    most = max(map(len, panes))
    width = 5.8 + 0.075 * max(len(words) for rows in panes for words, _ in rows)
    figure, panels = style.panels(len(panes), width, 0.9 + 0.36 * most, most=1)
    for axes, rows in zip(panels, panes, strict=True):
        draw(axes, rows)
        first = rows[0][1]
        name = f"{names.model(first['model'])}, {data_title(first)}"
        where = f"{TOPOLOGIES[first['topology']].title}, {first['workers']} workers, batch {first['batch']:g}"
        rate = f", {mbit} Mb/s" if (mbit := tables.links_mbit(first)) else ""
        axes.set_title(f"{name}; {where}{rate}", fontsize=10)
    panels[-1].set_xlabel("time of one iteration (ms)")
    style.legend_of(figure, panels)
    note = (
        f"{captions.setting(table)}; {captions.counted(table)}, means over the workers; whiskers below the bars: "
        f"{captions.repeat(table)}; dotted: uncompressed in the same run; "
        f"{style.TIMES}: the speed-up against it; dashed: the shortest forward and backward pass"
    )
    if table["disturbed"].notna().any():
        note = f"{note}; disturbed: by other work or a change of the machine's speed"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
