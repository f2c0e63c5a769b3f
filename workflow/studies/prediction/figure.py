"""Predicted against measured iteration time, one point per timing run; the dashed lines are 10 % off.

Full: paired, computation scaled to the machine's speed in the run; hollow: from the calibration alone."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from harness.report import style

style.log_errors(snakemake)
table = pd.read_csv(snakemake.input[0])
methods = style.in_order(table["method"])
figure, axes = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
low, high = (pick(table[["predicted_s", "paired_s", "measured_s"]].to_numpy().ravel()) * 1e3 for pick in (min, max))
ends = [low * 0.8, high * 1.25]
axes.plot(ends, ends, color="0.4", linewidth=0.8)
for off in (0.9, 1.1):
    axes.plot(ends, [off * end for end in ends], color="0.4", linewidth=0.6, linestyle="--")
for method in methods:
    rows = table[table["method"] == method]
    look = style.line(method, methods) | {"linestyle": "", "markersize": 6, "alpha": 0.8}
    axes.plot(rows["measured_s"] * 1e3, rows["paired_s"] * 1e3, **look)
    look |= {"label": None, "fillstyle": "none", "alpha": 0.5}
    axes.plot(rows["measured_s"] * 1e3, rows["predicted_s"] * 1e3, **look)
axes.set_xscale("log")
axes.set_yscale("log")
for axis in (axes.xaxis, axes.yaxis):
    style.plain_log(axis)
axes.set_xlim(ends)
axes.set_ylim(ends)
axes.set_aspect("equal")
axes.set_xlabel("measured iteration (ms)")
axes.set_ylabel("predicted iteration (ms)")
axes.grid(alpha=0.3, which="both")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
note = f"{style.setting(table)}; n = {len(table)} timing runs"
for kind, column in (("paired", "paired_error"), ("calibration alone", "error")):
    size = table[column].abs()
    note += f"; {kind}: median error {size.median():.0%}, worst {size.max():.0%}"
figure.supxlabel(textwrap.fill(note, 95), fontsize=6.5, color="0.3", x=0.02, ha="left")
style.save_figure(figure, snakemake.output)
