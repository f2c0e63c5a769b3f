"""Calibration: what selecting and sending one bucket costs by its size, and the line that the planners use.

Above: sparsification, t_s; below: communication, t_c. Points: medians of each size, amortised over the phases
of a cycle; full: one bucket alone, hollow: each of eight that are sent together. Lines: for sparsification
through the medians, for communication alpha + beta * entries and a latency that buckets sent together share, by
least absolute relative error. In brackets R^2 of the logarithms, poor below 0.9."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from harness.report import style
from harness.timemodel import costs
from harness.report.tidy import read

style.log_errors(snakemake)
samples = read(snakemake.input.samples)
methods = style.in_order(samples["method"])
columns = list(samples[["topology", "ratio"]].dropna().drop_duplicates().itertuples(index=False))
residuals = []
parts = {"sparsify_s": "sparsification (ms)", "communication_s": "communication (ms)"}
figure, grid = plt.subplots(2, len(columns), figsize=(4.2 * len(columns), 6), layout="constrained", sharex=True,
                            sharey="row", squeeze=False)  # fmt: skip
for line, (part, label) in zip(grid, parts.items(), strict=True):
    for axes, (topology, ratio) in zip(line, columns, strict=True):
        here = samples[(samples["topology"] == topology) & (samples["ratio"].isna() | (samples["ratio"] == ratio))]
        for method in methods:
            rows = here[here["method"] == method]
            if rows.empty or not rows[part].any():
                continue
            points = costs.amortised(rows, part)
            buckets = points["buckets"] if part == "communication_s" else None
            each = points["seconds"] / points["buckets"]
            if buckets is None:
                fitted, once = costs.curve(points["entries"], each), 0.0
            else:
                fitted = costs.fit(points["entries"], points["seconds"], buckets)
                once = fitted.once
            fit_s = fitted(points["entries"]) + once / points["buckets"]
            about = {"part": part.removesuffix("_s"), "topology": topology, "ratio": ratio, "method": method}
            about["r2"] = fitted.r2
            residuals += [
                about | {"entries": n, "buckets": b, "measured_s": y, "fitted_s": f, "residual_s": y - f}
                for n, b, y, f in zip(points["entries"], points["buckets"], each, fit_s, strict=True)
            ]
            look = style.line(method, methods)
            for count, filled in zip(sorted(points["buckets"].unique()), ("full", "none"), strict=False):
                x, y = points["entries"][points["buckets"] == count], each[points["buckets"] == count]
                axes.plot(x, y * 1e3, **look | {"linestyle": "", "label": None, "fillstyle": filled})
                x = np.geomspace(x.min(), x.max(), 100)
                name = f"{look['label']} ({fitted.r2:.2f})" if count == 1 else None
                width = 1.2 if count == 1 else 0.6
                line_look = look | {"marker": "", "label": name, "linewidth": width}
                axes.plot(x, (fitted(x) + once / count) * 1e3, **line_look)
        axes.set_xscale("log")
        axes.set_yscale("log")
        style.plain_log(axes.yaxis, subs=(1,))
        axes.set_title(f"ratio {ratio:g}, {topology}", fontsize=9)
        axes.legend(frameon=False, fontsize=7)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    line[0].set_ylabel(label)
for axes in grid[-1]:
    axes.set_xlabel("entries of the bucket before sparsification")
each = samples.groupby(["method", "ratio", "topology", "entries", "phase"], dropna=False).size()
note = f"{style.setting(samples)}; n = {style.least_to_most(each)} samples of each size and phase"
figure.supxlabel(textwrap.fill(note, 65 * len(columns)), fontsize=6.5, color="0.3", x=0.02, ha="left")
style.save_figure(figure, snakemake.output)
pd.DataFrame(residuals).to_csv(snakemake.output.csv, index=False, float_format="%.6g")
