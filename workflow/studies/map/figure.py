"""Which variant the time model expects to be fastest, by link rate and number of workers; no measurement.

Eqs 2-7 with the costs calibrated on this machine: computation and selection stay this machine's, the bytes on
the busiest link take their time at each rate, and a collective's steps wait for the network once each. Colour:
the fastest variant; lines and their numbers: how many times as fast as uncompressed."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap

from harness.report import captions, looks
from harness.report.log import log_errors
from harness.report.names import Names, at_ratio
from harness.timemodel.predict import Calibrations, Elsewhere

RATES_MBIT = np.geomspace(100, 400_000, 37)
WORKERS = 2 ** np.arange(1, 11)
SPEEDUPS = [1.1, 1.5, 2, 4, 8, 16, 32]


def draw(axes, known: list[Elsewhere], colours: ListedColormap) -> None:
    """The fastest of the variants of one model, and how much it gains; uncompressed may be missing."""
    seconds = np.array([[[k.iteration_s(n, rate) for rate in RATES_MBIT] for n in WORKERS] for k in known])
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)  # before the contours, whose labels are placed by what is seen
    axes.pcolormesh(RATES_MBIT / 1e3, WORKERS, seconds.argmin(axis=0), cmap=colours, vmin=-0.5, vmax=len(known) - 0.5,
                    shading="nearest", rasterized=True)  # fmt: skip
    dense = [place for place, k in enumerate(known) if k.spec.scheme.method == "none"]
    if dense:
        speedup = seconds[dense[0]] / seconds.min(axis=0)
        levels = [level for level in SPEEDUPS if speedup.min() < level < speedup.max()]
        if levels:
            lines = axes.contour(RATES_MBIT / 1e3, WORKERS, speedup, levels=levels, colors="black", linewidths=0.7)
            axes.clabel(lines, fmt="x%g", fontsize=7)
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.set_yticks([2, 8, 32, 128, 512, 1024], ["2", "8", "32", "128", "512", "1024"])
    axes.minorticks_off()
    axes.set_xlabel("rate of every link (Gbit/s)")
    axes.set_ylabel("workers")


def main() -> None:
    log_errors(snakemake)
    names, runs = Names.of(snakemake), [Path(run) for run in snakemake.input.calibration]
    known = Calibrations(run.parent for run in runs).elsewhere()
    models = names.models_in(model for model, _ in known)
    variants = names.variants_in(variant for _, variant in known)
    colours = ListedColormap([looks.area(variant, names) for variant in variants])
    figure, panels = looks.panels(len(models), 4.0, 3.5)
    for axes, model in zip(panels, models, strict=True):
        draw(axes, [known[model, variant] for variant in variants], colours)
        axes.set_title(names.model(model), fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=colours(i)) for i in range(len(variants))]
    labels = [names.variant(v) + at_ratio(known[models[0], v].spec.ratio) for v in variants]
    looks.legend(figure, handles, labels)
    cluster = next(iter(known.values())).spec.cluster
    rates = captions.least_to_most(pd.Series([k.here[1] for k in known.values()]))
    machine = json.loads(runs[0].read_text())["provenance"]["machine"]
    note = f"time model alone, from calibrations on {machine}: {cluster.engine}, {cluster.workers} workers, "
    note += f"{rates} Mb/s links; all-gather; n = 0 measurements at these rates and sizes"
    looks.save(figure, note, snakemake.output)


main()
