"""Published and measured here: the difference in test accuracy to uncompressed with the same optimizer, in points.

Whiskers: twice the standard error of a test set of this size."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.load_runs import read
from dlgs_bench.report.log import Script, log_errors

METHODS = {"topk": ("Top-K", "#E69F00"), "randomk": ("random-k", "#56B4E9")}


def label(row: dict) -> str:
    return f"{METHODS[row['method']][0]} {row['ratio']:g}, {'with' if row['error_feedback'] else 'no'} feedback"


def draw(axes: Axes, rows: list[dict], who: str) -> None:
    """Draw the gaps of one source as bars from the top."""
    for y, row in enumerate(rows):
        look = {"color": METHODS[row["method"]][1], "hatch": "" if row["error_feedback"] else "///"}
        gap, error = 100 * row[f"{who}_gap"], 100 * row[f"{who}_error"]
        axes.barh(y, gap, 0.7, xerr=error, edgecolor="0.3", linewidth=0.6, capsize=2,
                  error_kw={"elinewidth": 0.8}, **look)  # fmt: skip
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_xlabel("gap (percentage points)")
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    table, points = pd.read_csv(snakemake.input.table), read(snakemake.input.points)
    rows = table[table["method"] != "none"].to_dict("records")
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained", sharex=True, sharey=True)
    here = f"here, after {points['step'].max()} steps"
    for axes, who, title in ((left, "published", "published, after 328 epochs"), (right, "measured", here)):
        draw(axes, rows, who)
        axes.set_title(title, fontsize=9)
    left.set_yticks(range(len(rows)), [label(row) for row in rows])
    left.invert_yaxis()
    first = points.iloc[0]
    note = f"published: {table['source'].iloc[0]}, 328 epochs, one seed; here: {points['step'].max()} steps of "
    note += f"{first['workers']} x {first['batch']} samples; {captions.setting(points)}; {captions.seeds(points)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
