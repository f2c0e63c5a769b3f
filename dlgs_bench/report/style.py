"""The style of figures: panels, legends, axes, and the small print below. No torch."""

import textwrap
from collections.abc import Container, Iterable, Sequence

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike

from dlgs_bench import looks
from dlgs_bench.report import captions
from dlgs_bench.report.log import Script
from dlgs_bench.report.names import Names, at_ratio

# Ignore a user's matplotlibrc, so that the same data give the same figure on every machine.
matplotlib.rcdefaults()
matplotlib.use("Agg")
plt.rcParams["svg.hashsalt"] = "figure"  # the ids in an SVG are random otherwise

SHADES = (0.92, 0.45)  # lightness of the first and of the last area; black lines stay visible on both
GREY = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue in a grey print (ITU-R BT.601)
TIMES = "\u00d7"  # before a speed-up
BOUND = {"color": "0.3", "linestyle": "--", "linewidth": 1, "label": "shortest forward + backward (bound)"}  # its line
MODEL = {"color": "0.3", "linewidth": 1, "label": "time model"}  # of all lines of predictions, in a legend
PRINT_PER_INCH = 16  # characters of the small print per inch
PRINT_POINTS = 8  # font size of the small print
LEGEND_INCHES = 2.4  # width of an entry of the legend, if its label is not longer
KEY_INCHES, LETTER_INCHES = 0.6, 0.067  # width of an entry without its label, and of a letter


def of_variant(variant: str, names: Names, ratio: int = 0) -> dict:
    """The line of a variant: the same in every figure of a configuration, and for common methods in all figures."""
    return looks.line(looks.number(variant, names.variants), names.variant(variant), ratio)


def lines_of_variants(points: pd.DataFrame, names: Names) -> list[tuple[dict, pd.DataFrame]]:
    """(line, points) of each variant, and of each of its ratios if there are several; in the order of tables."""
    drawn, several = [], points["ratio"].nunique() > 1
    for variant in names.variants_in(points["variant"]):
        own = points[points["variant"] == variant]
        for index, (ratio, rows) in enumerate(own.groupby(-own["ratio"], dropna=False)):
            look = of_variant(variant, names, index)
            if several:
                look["label"] += at_ratio(-ratio)
            drawn.append((look, rows))
    return drawn


def areas(variants: list[str], names: Names) -> dict[str, tuple[float, ...]]:
    """variant -> the colour of its area. The colours differ in lightness, so that areas differ in a grey print."""
    shades = np.linspace(*SHADES, len(variants))
    hues = [looks.colour(looks.number(variant, names.variants)) for variant in variants]
    return {one: _shaded(hue, shade) for one, hue, shade in zip(variants, hues, shades, strict=True)}


def grey(colour: str | tuple[float, float, float]) -> float:
    """The lightness of a colour in a grey print, from 0 (black) to 1 (white)."""
    return float(np.array(to_rgb(colour)) @ GREY)


def _shaded(colour: str, shade: float) -> tuple[float, ...]:
    """The colour, made paler or darker, so that ``grey`` of it is ``shade``."""
    own, light = np.array(to_rgb(colour)), grey(colour)
    shaded = own * shade / light if shade < light else 1 - (1 - own) * (1 - shade) / (1 - light)
    return tuple(shaded.tolist())


def panels(number: int, width: float, height: float, most: int = 3) -> tuple[Figure, np.ndarray]:
    """A figure with ``number`` panels of this size in inches, at most ``most`` in a row, and the list of its panels."""
    rows = -(-number // most)
    columns = -(-number // rows)
    size = (width * columns, 0.7 + height * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in grid.flat[number:]:
        axes.set_visible(False)
    return figure, grid.flat[:number]


def legend_of(figure: Figure, panels: Iterable[Axes], only: Container[str] | None = None) -> None:
    """Draw one legend for all panels, each label once. ``only``: the labels to show; None for all."""
    keys = [axes.get_legend_handles_labels() for axes in panels]
    drawn = {label: handle for handles, labels in keys for handle, label in zip(handles, labels, strict=True)}
    shown = [label for label in drawn if only is None or label in only]
    legend(figure, [drawn[label] for label in shown], shown)


def legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Draw a legend above the panels, in as few rows as fit its width, with rows of about equal length."""

    def inches(columns: int) -> float:
        split = np.array_split([KEY_INCHES + LETTER_INCHES * len(label) for label in labels], columns)
        return sum(column.max() for column in split)

    fewest = -(-len(labels) // max(2, int(figure.get_figwidth() / LEGEND_INCHES)))
    every = [-(-len(labels) // rows) for rows in range(fewest, len(labels) + 1)]
    columns = next((n for n in every if inches(n) <= figure.get_figwidth()), 1)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)


def open_frame(axes: Axes) -> None:
    """Remove the frame above and on the right."""
    axes.spines[["top", "right"]].set_visible(False)


def plain_log(axis: Axis, subs: Sequence[float] = (1, 2, 5)) -> None:
    """Label a logarithmic axis with plain numbers at 1, 2, 5, 10, ..."""
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def whiskers(value: pd.Series, least: pd.Series, most: pd.Series) -> np.ndarray:
    """Matplotlib's error bars from ``least`` to ``most``."""
    return np.array([value - least, most - value]).clip(min=0)


def measured(axes: Axes, look: dict, x: ArrayLike, rows: pd.DataFrame, column: str, scale: float = 1) -> None:
    """Draw points with whiskers: ``column`` of the rows, with whiskers from ``_low`` to ``_high``."""
    value, low, high = (rows[f"{column}{end}"] * scale for end in ("", "_low", "_high"))
    axes.errorbar(x, value, yerr=whiskers(value, low, high), capsize=2, elinewidth=0.8, **look | {"linestyle": ""})


def predicted(axes: Axes, look: dict, x: ArrayLike, y: ArrayLike) -> None:
    """Draw the line of a model: thin, without markers, and without an entry in the legend."""
    axes.plot(x, y, **look | {"marker": "", "label": None, "linewidth": 1})


def rate_axis(axes: Axes, ticks: list[float]) -> None:
    """Make the x axis a logarithmic axis of link rates, with ticks at the measured rates."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("rate of every link (Mb/s)")


def between(ticks: list[float]) -> np.ndarray:
    """The link rates of a line, from a little below the first tick to a little above the last tick."""
    return np.geomspace(ticks[0] / 1.5, ticks[-1] * 1.5, 60)


def save(figure: Figure, note: str, snakemake: Script) -> None:
    """Add the small print, and save the figure as SVG and PNG. The SVG contains its caption.

    The files contain no date, so the same data give the same file.
    """
    width = round(PRINT_PER_INCH * figure.get_figwidth())
    note = textwrap.fill(captions.unbroken(note), width)
    figure.supxlabel(note, fontsize=PRINT_POINTS, color="0.2", x=0.02, ha="left")
    if layout := figure.get_layout_engine():
        layout.execute(figure)  # once for both files: the layout takes longer than drawing
        figure.set_layout_engine(None)
    caption = captions.of_script(snakemake)
    figure.savefig(snakemake.output.svg, metadata={"Date": None, "Description": caption})
    figure.savefig(snakemake.output.png, dpi=160)
