"""Training over OmniReduce: the iteration in ms with OmniReduce and with other sums of the same gradients; hatched: the
wait for communication after backward.

One panel per model and part of the blocks. Above OmniReduce's bars: the speed-up of the iteration over a ring's, and
the bound, which is the speed-up that the bytes alone allow. Whiskers: the 95 % interval of a repeat."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench import looks
from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names

WAYS = {"engine": "engine", "ring": "ring", "all-gather": "all-gather", "omnireduce": "OmniReduce"}
REST = ["forward_s", "backward_s", "sparsify_s", "waiting_s", "optimizer_s", "other_s"]
_, COMMUNICATION, HATCH = looks.PARTS["non-overlapped communication"]
_, COMPUTATION, _ = looks.PARTS["computation"]


def draw(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the bars of one panel, grouped by the number of workers, one bar per way."""
    ticks, labels, y = [], [], 0
    for workers, own in rows.groupby("workers"):
        for way, name in WAYS.items():
            for row in own[own["way"] == way].to_dict("records"):
                bar(axes, y, row)
                ticks.append(y)
                labels.append(f"{name}\n{workers} workers")
                y += 1
        y += 0.6
    axes.set_xticks(ticks, labels, fontsize=7, rotation=45, ha="right")
    axes.set_ylabel("one iteration (ms)")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.15)
    style.open_frame(axes)


def bar(axes: Axes, x: float, row: dict) -> None:
    rest, communication = sum(row[part] for part in REST) * 1e3, row["communication_s"] * 1e3
    first = x == 0
    axes.bar(x, rest, color=COMPUTATION, label="all else" if first else None)
    label = "communication after backward" if first else None
    axes.bar(x, communication, bottom=rest, color=COMMUNICATION, hatch=HATCH, edgecolor="white", label=label)
    low, value, high = (row[f"iteration_s{end}"] * 1e3 for end in ("_low", "", "_high"))
    around = np.array([[value - low], [high - value]]).clip(min=0)
    axes.errorbar(x, value, yerr=around, color="black", capsize=2, lw=0.8)
    if row["way"] == "omnireduce":
        words = f"{style.TIMES}{row['gain']:.1f}\n(bound {row['bound']:.1f})"
        axes.text(x, max(value, high), words, ha="center", va="bottom", fontsize=7)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input.table)
    compared = table[(table["method"] == "none") | ~table["uncompressed"]]
    panes = list(compared.groupby(["model", "ratio"], dropna=False, sort=False))
    figure, panels = style.panels(len(panes), 4.2, 3.6)
    for axes, ((model, ratio), rows) in zip(panels, panes, strict=True):
        draw(axes, rows)
        what = "uncompressed" if pd.isna(ratio) else f"{ratio:g} of the blocks"
        axes.set_title(f"{names.model(model)}, {what}", fontsize=9)
    style.legend_of(figure, panels)
    note = f"{captions.setting(table)}; medians of {captions.blocks(table)}; {captions.WHISKERS}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
