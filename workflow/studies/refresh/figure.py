"""Refresh interval: the effect of s on the density, step by step, and on the final accuracy.

Left: the running mean of the density over one per cent of the steps, over all layers or groups. Dashed: the requested
ratio. Right: test accuracy after the last step; whiskers: the standard deviation over seeds, if there are several."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench import looks
from dlgs_bench.report import captions, style
from dlgs_bench.report.load_runs import last_points
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title

KEYS = ["variant", "ratio"]


def draw_density(axes: Axes, steps: pd.DataFrame, intervals: list, label: str, ratio: float) -> None:
    """Draw the smoothed density over steps, a line per refresh interval."""
    for index, s in enumerate(intervals):
        sent = steps[steps["refresh_every"] == s].groupby("step")["density"].mean()
        smooth = sent.rolling(max(1, len(sent) // 100), min_periods=1).mean()
        axes.plot(smooth.index, smooth, **looks.line(index, f"s = {s:g}") | {"marker": ""})
    axes.axhline(ratio, color="0.4", linestyle="--", linewidth=0.8)
    axes.set_yscale("log")
    style.plain_log(axes.yaxis)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def draw_accuracy(axes: Axes, last: pd.DataFrame, intervals: list) -> None:
    """Draw the final test accuracy by refresh interval, with mean and standard deviation over seeds."""
    by_interval = last.groupby("refresh_every")["test_accuracy"]
    mean, sd = by_interval.mean().reindex(intervals) * 100, by_interval.std().reindex(intervals) * 100
    positions = range(len(intervals))
    axes.errorbar(positions, mean, yerr=sd, fmt="D", color="#D55E00", capsize=3)
    axes.set_xticks(positions, [f"{s:g}" for s in intervals])
    axes.margins(x=0.15, y=0.3)
    axes.set_ylabel("test accuracy (%)")
    axes.grid(alpha=0.3, axis="y")
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    accuracy, density = map(pd.read_csv, snakemake.input[:2])
    last = last_points(accuracy)
    intervals = sorted(density["refresh_every"].unique())
    rows = list(density.groupby(KEYS, sort=False))
    size = (8.2, 0.9 + 2.5 * len(rows))
    figure, grid = plt.subplots(len(rows), 2, figsize=size, layout="constrained", squeeze=False)
    for (left, right), ((variant, ratio), steps) in zip(grid, rows, strict=True):
        draw_density(left, steps, intervals, f"density of {names.variant(variant)}, ratio {ratio:g}", ratio)
        draw_accuracy(right, last[(last["variant"] == variant) & (last["ratio"] == ratio)], intervals)
    grid[-1][0].set_xlabel("step")
    grid[-1][1].set_xlabel("refresh interval s (steps)")
    style.legend_of(figure, grid.flat)
    first = accuracy.iloc[0]
    note = (
        f"{names.model(first['model'])}, {data_title(first)}; {captions.setting(accuracy)}; {captions.seeds(accuracy)}"
    )
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
