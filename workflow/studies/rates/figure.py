"""The time of one iteration against the rate of the links, per method: measured, and by the time model.

Points: timing runs over the testbed, whiskers: smallest and largest block. Lines: eqs 2-7 with the costs
calibrated at one rate (dotted vertical line); the bytes on the link take their time at each rate, the
processors' part of a communication stays. Uncompressed is its own run at each rate."""

import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from harness.report import style
from harness.timemodel.calibrated import all_elsewhere

style.log_errors(snakemake)
table = pd.read_csv(snakemake.input[0])
ratio = table["ratio"].dropna().iloc[0]
known = all_elsewhere([Path(run).parent for run in snakemake.input.calibration], ratio)
models = [m for m in style.MODELS if m in set(table["model"])]
figure, grid = plt.subplots(1, len(models), figsize=(4.4 * len(models), 4.2), layout="constrained", squeeze=False)
rates = np.geomspace(table["rate_mbit"].min() / 1.5, table["rate_mbit"].max() * 1.5, 60)
methods = style.in_order(table["method"])
for axes, model in zip(grid[0], models, strict=True):
    for method in methods:
        look = style.line(method, methods)
        rows = table[(table["model"] == model) & (table["method"] == method)].sort_values("rate_mbit")
        y, low, high = (rows[c] * 1e3 for c in ("iteration_s", "iteration_s_min", "iteration_s_max"))
        axes.errorbar(rows["rate_mbit"], y, yerr=[(y - low).clip(lower=0), (high - y).clip(lower=0)],
                      capsize=2, elinewidth=0.8, **look | {"linestyle": ""})  # fmt: skip
        predict = known[model, method]
        curve = [predict.iteration_s(predict.here[0], rate) for rate in rates]
        axes.plot(rates, np.array(curve) * 1e3, **look | {"marker": "", "label": None, "linewidth": 1})
    axes.axvline(predict.here[1], color="0.6", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_log(axes.yaxis)
    ticks = sorted(table["rate_mbit"].unique())
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("rate of every link (Mbit/s)")
    rows = table[table["model"] == model]
    axes.set_title(f"{style.MODELS[model]}, {style.data_label(rows.iloc[0])}, ratio {ratio:g}", fontsize=9)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
grid[0][0].set_ylabel("time of one iteration (ms)")
figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
first = table.iloc[0]
note = f"{first['machine']}; testbed; {first['engine']}, {first['workers']} workers; "
note += f"n = {style.least_to_most(table['iterations'])} iterations a point, whiskers: smallest and largest block"
figure.supxlabel(textwrap.fill(note, 70 * len(models)), fontsize=6.5, color="0.3", x=0.02, ha="left")
style.save_figure(figure, snakemake.output)
