"""Which method the time model expects to be fastest, by link rate and number of workers; no measurement.

Eqs 2-7 with the costs calibrated on this machine: computation and selection stay this machine's, the bytes on
the busiest link take their time at each rate, and a collective's steps wait for the network once each. Colour:
the fastest method; lines and their numbers: how many times as fast as uncompressed."""

import json
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from harness.report import style
from harness.timemodel.calibrated import all_elsewhere

RATES_MBIT = np.geomspace(100, 400_000, 37)
WORKERS = 2 ** np.arange(1, 11)

style.log_errors(snakemake)
known = all_elsewhere([Path(run).parent for run in snakemake.input.calibration])
methods = style.in_order({method for _, method in known})
ratio = next(predict.method.ratio for predict in known.values() if predict.method.ratio)
models = [m for m in style.MODELS if (m, methods[0]) in known]
figure, grid = plt.subplots(1, len(models), figsize=(3.9 * len(models) + 0.4, 4.2), layout="constrained", squeeze=False)
colours = ListedColormap([style.line(m, methods)["color"] for m in methods])
for axes, model in zip(grid[0], models, strict=True):
    seconds = np.empty((len(methods), len(WORKERS), len(RATES_MBIT)))
    for i, method in enumerate(methods):
        for j, workers in enumerate(WORKERS):
            seconds[i, j] = [known[model, method].iteration_s(workers, rate) for rate in RATES_MBIT]
    best = seconds.argmin(axis=0)
    speedup = seconds[methods.index("none")] / seconds.min(axis=0)
    axes.pcolormesh(RATES_MBIT / 1e3, WORKERS, best, cmap=colours, vmin=-0.5, vmax=len(methods) - 0.5, alpha=0.55,
                    shading="nearest", rasterized=True)  # fmt: skip
    lines = axes.contour(RATES_MBIT / 1e3, WORKERS, speedup, levels=[1.1, 1.5, 2, 4, 8, 16, 32], colors="black",
                         linewidths=0.7)  # fmt: skip
    axes.clabel(lines, fmt="x%g", fontsize=7)
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.set_yticks([2, 8, 32, 128, 512, 1024], ["2", "8", "32", "128", "512", "1024"])
    axes.minorticks_off()
    axes.set_xlabel("rate of every link (Gbit/s)")
    axes.set_title(f"{style.MODELS[model]}, ratio {ratio:g}", fontsize=9)
grid[0][0].set_ylabel("workers")
handles = [plt.Rectangle((0, 0), 1, 1, facecolor=colours(i), alpha=0.55) for i in range(len(methods))]
figure.legend(handles, [style.method_label(m) for m in methods], loc="outside upper center", ncols=4, frameon=False)
first = next(iter(known.values())).method
machine = json.loads(Path(snakemake.input.calibration[0]).read_text())["provenance"]["machine"]
note = f"time model alone, from calibrations on {machine}: {first.engine}, {first.workers} workers, "
note += f"{min(first.rates_mbit):g} Mb/s links; all-gather; n = 0 measurements at these rates and sizes"
figure.supxlabel(textwrap.fill(note, 62 * len(models)), fontsize=6.5, color="0.3", x=0.02, ha="left")
style.save_figure(figure, snakemake.output)
