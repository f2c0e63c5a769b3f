"""Bytes and accuracy: the bits that each method sends per entry of the gradient, and its test accuracy after all steps.

Named in black: the methods that no other method beats in both bits and accuracy. Also named: the usual methods."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from dlgs_bench import looks
from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title
from dlgs_bench.report.ranking import unbeaten

PLACES = ((5, 4, "left"), (-5, 4, "right"), (5, -10, "left"), (-5, -10, "right"))  # of a name next to its point


def write(axes: Axes, words: str, at: tuple[float, float], color: str, taken: list[Bbox]) -> Bbox:
    """Write a name where it covers no name in ``taken``, if there is such a place; return its place."""
    for x, y, side in PLACES:
        label = axes.annotate(
            words, at, xytext=(x, y), textcoords="offset points", ha=side, fontsize=7.5, color=color
        )  # fmt: skip
        place = label.get_window_extent()
        if not any(place.overlaps(other) for other in taken):
            break
        if (x, y, side) != PLACES[-1]:
            label.remove()
    return place


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, points, table = Names.of(snakemake), *map(pd.read_csv, (snakemake.input.accuracy, snakemake.input.table))
    figure, (axes,) = style.panels(1, 7.2, 4.6)
    named = []
    for row, best in zip(table.to_dict("records"), unbeaten(table), strict=True):
        usual = row["variant"] in looks.COMMON
        look = style.of_variant(row["variant"], names) if best or usual else {"color": "0.65", "marker": "."}
        at = row["bits_per_entry"], 100 * row["accuracy"]
        axes.plot(*at, **look)
        if best or usual:
            named.append((names.variant(row["variant"]), at, "black" if best else "0.45"))
    axes.set_xscale("log")
    style.plain_log(axes.xaxis, subs=(1,))
    taken: list[Bbox] = []
    for words, at, color in named:
        taken.append(write(axes, words, at, color, taken))
    axes.set_xlabel("sent by a worker (bits per entry of the gradient)")
    axes.set_ylabel(f"test accuracy after {table['steps'].max()} steps (%)")
    axes.grid(alpha=0.3)
    style.open_frame(axes)
    first = points.iloc[0]
    note = f"{names.model(first['model'])}, {data_title(first)}; {captions.setting(points)}; {captions.seeds(points)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
