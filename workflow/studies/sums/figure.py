"""How many times as fast as a ring OmniReduce and an all-gather sum, by the part of the blocks that are not zero.

A panel for each number of workers, for aggregators beside workers or apart from them, and for how blocks lie to each
other; a line for each shape of OmniReduce's streams. Grey: what the bytes alone allow, dashed with one aggregator."""

import pandas as pd

from harness.report import captions, looks
from harness.report.log import log_errors

PLACES = ("random", "overlapping", "disjoint")
SHAPE = ["aggregators", "fused", "in_flight"]


def draw(axes, rows: pd.DataFrame) -> None:
    """One panel."""
    streamed = rows[rows["way"] == "omnireduce"]
    for number, (shape, own) in enumerate(streamed.groupby(SHAPE)):
        aggregators, fused, in_flight = shape
        many = "one aggregator" if aggregators == 1 else "as many as workers"
        points(axes, looks.line(number, f"{many}, {fused} fused, {in_flight} in flight"), own)
    # Every run has its own; they send the same.
    gathered = rows[rows["way"] == "all-gather"].groupby("density", as_index=False).median(numeric_only=True)
    points(axes, looks.line(len(streamed.groupby(SHAPE)), "all-gather"), gathered)
    for aggregators, own in rows.groupby("aggregators"):
        bound, dash = own.groupby("density")["bound"].first(), "--" if aggregators == 1 else "-"
        label = "bound, one aggregator" if aggregators == 1 else "bound"
        axes.plot(bound.index, bound, dash, color="0.6", linewidth=3, alpha=0.5, zorder=0, label=label)
    axes.axhline(1, color="0.8", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    looks.plain_log(axes.xaxis)
    looks.plain_log(axes.yaxis)
    axes.set_xlabel("part of the blocks that are not zero")
    axes.set_ylabel("times as fast as a ring")
    looks.open_frame(axes)


def points(axes, look: dict, rows: pd.DataFrame) -> None:
    rows = rows.sort_values("density")
    axes.plot(rows["density"], rows["speedup"], **look)


def main() -> None:
    log_errors(snakemake)
    table = pd.read_csv(snakemake.input.table)
    cases = [
        (f"{workers} workers, {'apart' if apart else 'beside'}, {places} places", rows[rows["places"] == places])
        for (workers, apart), rows in table.groupby(["workers", "apart"])
        for places in PLACES
        if (rows["places"] == places).any()
    ]
    figure, panels = looks.panels(len(cases), 3.6, 3.2)
    for axes, (title, rows) in zip(panels, cases, strict=True):
        draw(axes, rows)
        axes.set_title(title, fontsize=9)
    looks.legend(figure, *panels[0].get_legend_handles_labels())
    n = captions.least_to_most(table["repeats"])
    first = table.iloc[0]
    size = f"{first['entries'] * 4e-6:g} MB in blocks of {first['block']} entries"
    note = f"{captions.setting(table)}; {size}; n = {n} repeats a point"
    looks.save(figure, note, snakemake)


main()
