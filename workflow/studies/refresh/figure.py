"""What the refresh interval s does: the density really sent, step by step, and the accuracy at the end.

Left: the running mean of the density over one per cent of the steps, every layer or group together;
the dashed line is the ratio asked for. Right: test accuracy after the last step."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from harness.report import style

style.log_errors(snakemake)
accuracy, density = map(pd.read_csv, snakemake.input[:2])
ratios = sorted(density["ratio"].unique(), reverse=True)
intervals = sorted(density["refresh_every"].unique())
looks = dict(zip(intervals, (style.line(name, intervals) for name in intervals), strict=True))
figure, grid = plt.subplots(len(ratios), 2, figsize=(8.2, 0.9 + 2.5 * len(ratios)), layout="constrained", squeeze=False)
last = accuracy[accuracy["step"] == accuracy.groupby(["ratio", "refresh_every"])["step"].transform("max")]
for (left, right), ratio in zip(grid, ratios, strict=True):
    for s in intervals:
        rows = density[(density["ratio"] == ratio) & (density["refresh_every"] == s)]
        sent = rows.groupby("step")["density"].mean()
        smooth = sent.rolling(max(1, len(sent) // 100), min_periods=1).mean()
        look = looks[s] | {"label": f"s = {s}", "marker": ""}
        left.plot(smooth.index, smooth, **look)
    left.axhline(ratio, color="0.4", linestyle="--", linewidth=0.8)
    left.set_yscale("log")
    style.plain_log(left.yaxis)
    left.set_ylabel(f"density, ratio {ratio:g}")
    left.grid(alpha=0.3)
    points = last[last["ratio"] == ratio].groupby("refresh_every")["test_accuracy"]
    places = range(len(intervals))
    right.errorbar(places, points.mean() * 100, yerr=points.std().fillna(0) * 100, fmt="D", color="#D55E00", capsize=3)
    right.set_xticks(places, intervals)
    right.margins(x=0.15, y=0.3)
    right.set_ylabel("test accuracy (%)")
    right.grid(alpha=0.3, axis="y")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
grid[-1][0].set_xlabel("step")
grid[-1][1].set_xlabel("refresh interval s (steps)")
figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
first = accuracy.iloc[0]
note = f"{style.MODELS.get(first['model'], first['model'])}, {style.data_label(first)}, "
note += f"{style.method_label(first['method'])}; {style.setting(accuracy)}; n = {accuracy['seed'].nunique()} seed(s)"
if first["train_epochs"] < 20:
    note += f"; {first['train_epochs']:g} of the recipe's {first['epochs']:g} epochs: too short to rank"
figure.supxlabel(textwrap.fill(note, 130), fontsize=6.5, color="0.3", x=0.02, ha="left")
style.save_figure(figure, snakemake.output)
