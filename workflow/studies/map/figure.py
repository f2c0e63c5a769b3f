"""Map of methods: the variant that the time model predicts to be fastest, by link rate and number of workers.

No measurement: the time model (equations 2 to 7 of the paper) with costs calibrated on this machine. Computation and
selection keep this machine's times, the bytes on the busiest link take their time at each rate, and each round of a
collective adds one latency. Colour: the fastest variant. Lines and their numbers: its speed-up over uncompressed.
Cross: the network of the calibration, the only point where the model was compared with measurements; the farther from
it, the less reliable the map. Hatched: the two fastest variants differ by less than the model's error there, so either
may win. Variants that are the fastest nowhere are not shown. The colours differ in lightness, for prints in grey."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio
from dlgs_bench.timemodel.predict import Calibrations, Projection

AWAY = np.geomspace(1 / 8, 8, 31)  # rates of links, divided by the calibrated rate
WORKERS = 2 ** np.arange(1, 5)
SPEEDUPS = [1.1, 1.5, 2, 4, 8, 16, 32]


def iterations(projections: list[Projection]) -> np.ndarray:
    """The predicted seconds of an iteration: (variants, workers, rates)."""
    here = projections[0].here
    networks = [[replace(here, workers=n, rate_mbit=rate) for rate in AWAY * here.rate_mbit] for n in WORKERS]
    return np.array([[[k.iteration_s(there) for there in row] for row in networks] for k in projections])


def winners(variants: Iterable[str], seconds: np.ndarray) -> set[str]:
    """The variants that are the fastest somewhere; ``seconds``: as from ``iterations``, one entry per variant."""
    return {list(variants)[index] for index in np.unique(seconds.argmin(axis=0))}


def draw(
    axes: Axes, projections: list[Projection], seconds: np.ndarray, colours: ListedColormap, error: float
) -> ContourSet | None:
    """Draw the fastest variant of one model and its speed-up; uncompressed may be missing.

    ``seconds``: of ``projections``, from ``iterations``. ``error``: the relative error of the time model. Returns
    the contours of the speed-ups, which are labelled after the layout of the figure, or None.
    """
    here = projections[0].here
    rates = AWAY * here.rate_mbit
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.pcolormesh(rates, WORKERS, seconds.argmin(axis=0), cmap=colours, vmin=-0.5, vmax=len(projections) - 0.5,
                    shading="nearest", rasterized=True)  # fmt: skip
    axes.plot(here.rate_mbit, here.workers, "x", color="black", markersize=7, markeredgewidth=2, clip_on=False)
    axes.set_xlim(rates[0], rates[-1])
    axes.set_ylim(WORKERS[0], WORKERS[-1])
    style.plain_log(axes.xaxis, subs=(1,))
    axes.set_yticks(WORKERS, [f"{n}" for n in WORKERS])
    axes.set_xlabel("rate of every link (Mb/s)")
    axes.set_ylabel("workers")
    if len(projections) > 1 and error > 0:
        first, second = np.sort(seconds, axis=0)[:2]
        close = axes.contourf(rates, WORKERS, second / first, levels=[1, 1 + error], colors="none", hatches=["//"])
        close.set(edgecolor="0.35", linewidth=0)
    dense = [index for index, k in enumerate(projections) if k.spec.scheme.method == "none"]
    speedup = seconds[dense[0]] / seconds.min(axis=0) if dense else np.ones_like(seconds[0])
    levels = [level for level in SPEEDUPS if speedup.min() < level < speedup.max()]
    return axes.contour(rates, WORKERS, speedup, levels=levels, colors="black", linewidths=0.7) if levels else None


def panes_of(calibrations: Calibrations, names: Names) -> list[tuple[str, str, dict[str, Projection]]]:
    """(model, kind of selection, variant -> projection) of each panel."""
    panes = []
    for kind in calibrations.selections:
        projections = calibrations.projections(selection=kind)
        panes += [
            (model, kind, {variant: k for (of, variant), k in projections.items() if of == model})
            for model in names.models_in(of for (of, _), k in projections.items() if k.spec.scheme.method != "none")
        ]
    return panes


def legend(figure: Figure, colours: dict[str, tuple[float, ...]], labels: list[str]) -> None:
    """The colour of each variant, and the hatching of cells where two variants are too close to tell."""
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=colour) for colour in colours.values()]
    handles.append(plt.Rectangle((0, 0), 1, 1, facecolor="none", edgecolor="0.35", hatch="//", linewidth=0))
    style.legend(figure, handles, [*labels, "too close to tell"])


def label_lines(figure: Figure, lines: list[tuple[Axes, ContourSet]]) -> None:
    """Write the speed-ups along the contours, whose lengths depend on the layout."""
    figure.draw_without_rendering()
    for axes, contours in lines:
        for words in axes.clabel(contours, fmt=f"{style.TIMES}%g", fontsize=7):
            words.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5})


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, runs = Names.of(snakemake), [Path(run) for run in snakemake.input.calibration]
    panes = panes_of(Calibrations(run.parent for run in runs), names)
    predicted = [iterations(list(projections.values())) for *_, projections in panes]
    fastest = [winners(projections, seconds) for (*_, projections), seconds in zip(panes, predicted, strict=True)]
    variants = names.variants_in(set().union(*fastest))
    colours = style.areas(variants, names)
    prediction = captions.undisturbed(pd.read_csv(snakemake.input.prediction))
    error = prediction["error"].abs().median()
    figure, panels = style.panels(len(panes), 4.0, 3.5)
    lines = []
    for axes, (model, kind, projections), seconds in zip(panels, panes, predicted, strict=True):
        shades = ListedColormap([colours.get(variant, "white") for variant in projections])
        contours = draw(axes, list(projections.values()), seconds, shades, error)
        lines += [(axes, contours)] if contours else []
        axes.set_title(f"{names.model(model)}, selection {kind}", fontsize=9)
    every = [(variant, k) for *_, projections in panes for variant, k in projections.items()]
    ratio_of = {variant: k.spec.ratio for variant, k in every}
    legend(figure, colours, [names.variant(variant) + at_ratio(ratio_of[variant]) for variant in variants])
    label_lines(figure, lines)
    cluster = every[0][1].spec.cluster
    rates = captions.least_to_most(pd.Series([k.here.rate_mbit for _, k in every]))
    note = f"time model alone, from calibrations on {captions.machines(runs)}: {cluster.engine}, "
    note += f"{cluster.workers} workers, {rates} Mb/s links (cross); all-gather; n = 0 measurements elsewhere; "
    note += f"error of the model at the crosses: {captions.off(prediction, 'error')}, "
    note += f"n = {prediction['error'].count()} runs"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
