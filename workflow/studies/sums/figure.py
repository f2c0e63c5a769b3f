"""Block-sparse sums: the speed-up of OmniReduce and of an all-gather over a ring, by the part of the blocks that is not
zero.

One panel per number of workers, kind of links and placement of aggregators (on shared hosts, next to a worker, or on
dedicated hosts). The blocks that are not zero have random positions; the table has other positions too. One line per
setting of OmniReduce's streams: the number of aggregators, the blocks of a message x the entries of a block, and the
streams of an aggregator. Some settings have only a few points. Grey: the speed-up that the bytes alone allow, dashed
with one aggregator."""

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench import looks
from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors

SHAPE = ["aggregators", "block", "fused", "in_flight"]


def name(aggregators: int, block: int, fused: int, in_flight: int) -> str:
    """The name of a shape of streams."""
    many = "one aggregator" if aggregators == 1 else "as many as workers"
    return f"{many}, {fused} x {block}, {in_flight} in flight"


def title(row: pd.Series) -> str:
    latency = f", {row['latency_ms']:g} ms" if row["latency_ms"] else ""
    return f"{row['workers']} workers{latency}, {'dedicated' if row['dedicated'] else 'shared'} hosts"


def draw(axes: Axes, rows: pd.DataFrame, names: list[str]) -> None:
    """Draw one panel. ``names``: the names of the shapes in all panels."""
    streamed = rows[rows["way"] == "omnireduce"]
    for shape, own in streamed.groupby(SHAPE):
        points(axes, looks.line(names.index(name(*shape)), name(*shape)), own)
    # Every run has an all-gather, and all of them send the same.
    gathered = rows[rows["way"] == "all-gather"].groupby("density", as_index=False).median(numeric_only=True)
    points(axes, looks.line(len(names), "all-gather"), gathered)
    for aggregators, own in rows.groupby("aggregators"):
        bound, dash = own.groupby("density")["bound"].first(), "--" if aggregators == 1 else "-"
        label = "bound, one aggregator" if aggregators == 1 else "bound"
        axes.plot(bound.index, bound, dash, color="0.6", linewidth=3, alpha=0.5, zorder=0, label=label)
    axes.axhline(1, color="0.8", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_log(axes.xaxis)
    style.plain_log(axes.yaxis)
    axes.set_xlabel("part of the blocks that are not zero")
    axes.set_ylabel("times as fast as a ring")
    style.open_frame(axes)


def points(axes: Axes, look: dict, rows: pd.DataFrame) -> None:
    rows = rows.sort_values("density")
    axes.plot(rows["density"], rows["speedup"], **look)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    table = pd.read_csv(snakemake.input.table)
    rows_of = table[table["positions"] == "random"].groupby(["latency_ms", "workers", "dedicated"])
    cases = [(title(rows.iloc[0]), rows) for _, rows in rows_of]
    figure, panels = style.panels(len(cases), 3.6, 3.2)
    names = list(dict.fromkeys(name(*shape) for shape in sorted(table[SHAPE].itertuples(index=False))))
    for axes, (what, rows) in zip(panels, cases, strict=True):
        draw(axes, rows, names)
        axes.set_title(what, fontsize=9)
    style.legend_of(figure, panels)
    n = captions.least_to_most(table["repeats"])
    sizes = " or ".join(f"{entries * 4e-6:g}" for entries in sorted(table["entries"].unique()))
    note = f"{captions.setting(table)}; tensors of {sizes} MB; n = {n} repeats a point"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
