"""How figures look: colours, dashes, markers, hatches, and the line of small print below. No torch.

Colours are Okabe and Ito's, which colour-blind readers can tell apart. Every variant also has a dash and a marker,
every part of an iteration a hatch, so that a black-and-white print reads as well.
"""

import textwrap

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import to_rgb
from matplotlib.ticker import LogLocator, NullFormatter

from dlgs_bench.report import captions
from dlgs_bench.report.names import Names

# The same data give the same figure on every machine, whatever a user's matplotlibrc says.
matplotlib.rcdefaults()
matplotlib.use("Agg")
plt.rcParams["svg.hashsalt"] = "figure"  # names parts of an SVG; drawn at random otherwise

# Their lengths share no factor: no two of the first 280 variants have all three in common.
COLOURS = ["#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9"]
DASHES = ["-", "--", "-.", ":", (0, (5, 1))]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<"]
COMMON = ["none", "topk", "lags", "dlgs", "cast", "powersgd"]  # methods with the same look in every figure
FILLS = ["full", "none", "left", "bottom"]  # of the markers of one variant's first, second, ... ratio

# What an iteration is made of: part -> columns of a summary, colour, hatch.
PARTS = {
    "computation": (["forward_s", "backward_s"], "#56B4E9", ""),
    "sparsification": (["sparsify_s"], "#E69F00", "///"),
    "waiting for slower workers": (["waiting_s"], "#F0E442", "\\\\\\"),
    "non-overlapped communication": (["communication_s"], "#D55E00", "xxx"),
    "optimizer and other": (["optimizer_s", "other_s"], "#999999", "..."),
}

TIMES = "\u00d7"  # before a speed-up
BOUND = {"color": "0.3", "linestyle": "--", "linewidth": 1, "label": "computing alone (bound)"}  # its line
PRINT_PER_INCH = 16  # characters of the small print
PRINT_POINTS = 8  # its size
LEGEND_INCHES = 2.4  # of one entry


def line(number: int, label: str, ratio: int = 0) -> dict:
    """Matplotlib's keywords for the line of this number; ``ratio``: which of one variant's ratios, from 0."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "fillstyle": FILLS[ratio % len(FILLS)],
        "markersize": 4,
        "linewidth": 1.5 if ratio == 0 else 0.9,
        "label": label,
    }


def of_variant(variant: str, names: Names, ratio: int = 0) -> dict:
    """A variant's line, the same in every figure of a configuration; of a common method, the same in all figures."""
    return line(number(variant, names), names.variant(variant), ratio)


def number(variant: str, names: Names) -> int:
    """The number of a variant's look: common methods first, then the configuration's others in their order."""
    order = [*COMMON, *(name for name in names.variants if name not in COMMON)]
    return order.index(variant) if variant in order else len(order)


def area(variant: str, names: Names) -> tuple[float, float, float]:
    """The colour of a variant's area; where colours come round again, they are darker."""
    rounds, place = divmod(number(variant, names), len(COLOURS))
    paler = 0.55 * np.array(to_rgb(COLOURS[place])) + 0.45
    return tuple(paler * 0.65**rounds)


def panels(number: int, width: float, height: float, most: int = 3):
    """A figure of ``number`` panels of this size in inches, at most so many in a row; the panels, flat."""
    rows = -(-number // most)
    columns = -(-number // rows)
    size = (width * columns, 0.7 + height * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in grid.flat[number:]:
        axes.set_visible(False)
    return figure, grid.flat[:number]


def legend(figure, handles, labels) -> None:
    """Above the panels, in as few rows as find room, all about as long."""
    rows = -(-len(labels) // max(2, int(figure.get_figwidth() / LEGEND_INCHES)))
    columns = -(-len(labels) // rows)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=9)


def open_frame(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def plain_log(axis, subs=(1, 2, 5)) -> None:
    """A logarithmic axis with plain numbers at 1, 2, 5, 10, ..."""
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def whiskers(value: pd.Series, least: pd.Series, most: pd.Series) -> np.ndarray:
    """Matplotlib's error bars from ``least`` to ``most``."""
    return np.array([value - least, most - value]).clip(min=0)


def measured(axes, look: dict, x, rows: pd.DataFrame, column: str, scale: float = 1) -> None:
    """Points with whiskers: ``column`` of the rows, from its ``_low`` to its ``_high``."""
    value, low, high = (rows[f"{column}{end}"] * scale for end in ("", "_low", "_high"))
    axes.errorbar(x, value, yerr=whiskers(value, low, high), capsize=2, elinewidth=0.8, **look | {"linestyle": ""})


def predicted(axes, look: dict, x, y) -> None:
    """The line of a model, thin and without markers, below the label of the points."""
    axes.plot(x, y, **look | {"marker": "", "label": None, "linewidth": 1})


def rate_axis(axes, ticks: list[float]) -> None:
    """A logarithmic axis of link rates, marked where something was measured."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("rate of every link (Mb/s)")


def between(ticks: list[float]) -> np.ndarray:
    """Link rates for a line, from a little below the first of these to a little above the last."""
    return np.geomspace(ticks[0] / 1.5, ticks[-1] * 1.5, 60)


def save(figure, note: str, snakemake) -> None:
    """Put the small print below, and save as SVG and as PNG, without a date: the same data give the same file. The SVG
    carries its caption."""
    width = round(PRINT_PER_INCH * figure.get_figwidth())
    note = textwrap.fill(captions.unbroken(note), width)
    figure.supxlabel(note, fontsize=PRINT_POINTS, color="0.2", x=0.02, ha="left")
    caption = captions.of_script(snakemake)
    figure.savefig(snakemake.output.svg, metadata={"Date": None, "Description": caption})
    figure.savefig(snakemake.output.png, dpi=160)
