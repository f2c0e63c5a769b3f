"""Every planner's iteration: predicted beside measured, per model and ratio.

The same runs as the table of planners; whiskers: smallest and largest block."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from harness.report import style

style.log_errors(snakemake)
table = pd.read_csv(snakemake.input[0])
panels = list(table.groupby(["model", "ratio", "topology", "method"], sort=False))
columns = min(2, len(panels))
lines = -(-len(panels) // columns)
size = (4.2 * columns, 0.9 + 2.1 * lines)
figure, grid = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
for axes in grid.flat[len(panels) :]:
    axes.set_visible(False)
for axes, ((model, ratio, topology, _), rows) in zip(grid.flat, panels, strict=False):
    y = range(len(rows))
    axes.barh([i - 0.2 for i in y], rows["predicted_s"] * 1e3, 0.4, color="#CCCCCC", hatch="...", edgecolor="white",
              label="predicted")  # fmt: skip
    measured = rows["iteration_s"] * 1e3
    whiskers = [measured - rows["iteration_s_min"] * 1e3, rows["iteration_s_max"] * 1e3 - measured]
    axes.barh([i + 0.2 for i in y], measured, 0.4, xerr=[w.clip(lower=0) for w in whiskers], color="#0072B2",
              error_kw={"lw": 0.8, "capsize": 2}, label="measured")  # fmt: skip
    labels = [
        f"{row.planner} ({row.groups})" + ("" if row.timed_as == row.planner else f" = {row.timed_as}")
        for row in rows.itertuples()
    ]
    axes.set_yticks(y, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_title(f"{style.MODELS.get(model, model)}, ratio {ratio:g}, {topology}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
for axes in grid[-1]:
    axes.set_xlabel("time of one iteration (ms)")
figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False, fontsize=8)
note = f"{style.setting(table)}; in brackets: groups; measured: median of n = {style.least_to_most(table['n'])} "
note += "iterations amortised over the refresh interval, whiskers: smallest and largest block"
figure.supxlabel(textwrap.fill(note, 75 * columns), fontsize=6.5, color="0.3", x=0.02, ha="left")
style.save_figure(figure, snakemake.output)
