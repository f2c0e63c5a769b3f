"""Published and measured here: the difference in test accuracy to uncompressed of the same source, in points.

Only bars of one block are compared. Whiskers: twice the standard error of the difference; a bar whose whiskers cross 0
shows no gap. The axis is linear between -1 and 1."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.load_runs import read
from dlgs_bench.report.log import Script, log_errors

FEEDBACK = {True: ("#0072B2", ""), False: ("#E69F00", "///")}  # colour and hatch; grey: the source does not say
TICKS = [-30, -10, -3, -1, 0, 1]
LINES = 0.5  # between two blocks
OPTIMIZERS = {"momentum": "momentum", "plain": "plain SGD"}


def places(rows: list[dict]) -> tuple[list[float], dict[float, str]]:
    """The height of each bar, and of each block's heading."""
    heights, headings, y, block = [], {}, 0.0, None
    for row in rows:
        here = (row["source"], row["model"], row["optimizer"])
        if here != block:
            y += LINES if block else 0
            source = row["source"].partition(":")[0].partition(" (")[0]
            headings[y] = f"{source}: {row['model']}, {row['data']}, {OPTIMIZERS[row['optimizer']]}"
            y, block = y + 1, here
        heights.append(y)
        y += 1
    return heights, headings


def draw(axes: Axes, rows: list[dict], heights: list[float], who: str) -> None:
    """Draw the gaps, published or measured, as bars from the top."""
    for y, row in zip(heights, rows, strict=True):
        gap, error = 100 * row[f"{who}_gap"], 100 * row[f"{who}_error"]
        if pd.isna(gap):
            axes.text(-0.1, y, "not measured", fontsize=7, color="0.4", ha="right", va="center")
            continue
        colour, hatch = FEEDBACK.get(row["error_feedback"], ("0.7", ""))
        axes.barh(y, gap, 0.7, xerr=error, color=colour, hatch=hatch, edgecolor="0.3", linewidth=0.6, capsize=2,
                  error_kw={"elinewidth": 0.8})  # fmt: skip
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("gap (percentage points)", fontsize=9)
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    table, points = pd.read_csv(snakemake.input.table), read(snakemake.input.points)
    rows = table[table["published_gap"].notna()].to_dict("records")
    heights, headings = places(rows)
    size = (8.4, 1.6 + 0.2 * heights[-1])
    figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained", sharex=True, sharey=True)
    here = f"here, after {points['step'].max()} steps"
    for axes, who, title in ((left, "published", "published"), (right, "measured", here)):
        draw(axes, rows, heights, who)
        axes.set_title(title, fontsize=9)
    for y, heading in headings.items():
        text = left.text(0, y, heading, fontsize=8, weight="bold", va="center", transform=left.get_yaxis_transform())
        text.set(in_layout=False, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    left.set_yticks(heights, [row["label"] for row in rows], fontsize=8)
    left.invert_yaxis()
    first = points.iloc[0]
    note = "blue: with error feedback; hatched: without; grey: the source does not say; beyond 1 point the axis is "
    note += f"logarithmic; here: {points['step'].max()} steps of "
    note += f"{first['workers']} x {first['batch']} samples; {captions.setting(points)}; {captions.seeds(points)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
