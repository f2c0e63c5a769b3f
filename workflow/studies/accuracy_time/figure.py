"""Accuracy against time, of the kept long runs: a row for each model and ratio, a column for each rate of the links.

The time of a point is its number of steps times an iteration of Table 2, in hours of the machine that was timed.
50 Gb/s: measured, over links in proportion to the paper's nodes; band: the interval of a repeat. 25 and 10 Gb/s:
predicted from the measured iteration. Its bytes take longer on these links. Left edge of the band: the worker computes
for as much of this time as it can. Right edge: it computes nothing in this time."""

from itertools import product

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.paper import accuracy_time
from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio


def draw(axes: Axes, panel: pd.DataFrame, names: Names) -> None:
    """The curves of one model and ratio over links of one rate."""
    for variant in names.variants_in(panel["variant"]):
        rows = panel[panel["variant"] == variant].sort_values("step")
        look = style.of_variant(variant, names) | ({"markevery": 5} if len(rows) > 15 else {})
        percent = 100 * rows["test_accuracy"]
        axes.plot(rows["hours"], percent, **look)
        axes.fill_betweenx(percent, rows["hours_low"], rows["hours_high"], color=look["color"], alpha=0.12, lw=0)
    first = panel.iloc[0]
    title = f"{names.model(first['model'])}{at_ratio(first['ratio'])}; {first['gbit']:g} Gb/s, {first['how']}"
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("time (h)")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, inputs = Names.of(snakemake), snakemake.input
    points = accuracy_time.comparable_points(map(pd.read_csv, inputs.accuracy))
    timing = accuracy_time.timed(pd.concat(map(pd.read_csv, inputs.timing)))
    lines = accuracy_time.lines(points, accuracy_time.iterations(timing))
    models = names.models_in(lines["model"])
    settings = [rows for _, rows in lines.groupby(["model", "precision", "ratio"], sort=False)]
    settings.sort(key=lambda rows: (models.index(rows["model"].iloc[0]), rows["ratio"].iloc[0]))
    rates = sorted(lines["gbit"].unique(), reverse=True)
    figure, panels = style.panels(len(settings) * len(rates), 3.4, 2.5, most=len(rates))
    for axes, (rows, gbit) in zip(panels, product(settings, rates), strict=True):
        draw(axes, rows[rows["gbit"] == gbit], names)
    style.legend_of(figure, panels)
    timing = timing[timing["model"].isin(lines["model"])]
    note = f"Curves: {captions.setting(points)}; {accuracy_time.seeds(points)}. "
    note += f"Iterations: {captions.setting(timing)}; {captions.blocks(lines)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
