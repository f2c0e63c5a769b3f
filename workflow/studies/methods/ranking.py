"""Ranking of all methods: the time to the target accuracy, divided by the time of the fastest method at the same rate.

The methods are in the order of their score, which the table of methods explains. Methods whose ranges of scores overlap
are not ranked. The times are the number of steps of the measured curve times the measured iteration at each rate; the
time model is not used. Right edge: the method did not reach the target accuracy, or took longer than the axis shows."""

import pandas as pd

from dlgs_bench import looks
from dlgs_bench.report import captions, style, tables
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title
from dlgs_bench.report.ranking import AT_MOST, relative

TICKS = [1, 1.5, 2, 3, AT_MOST]
EDGE = 1.25 * AT_MOST


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, points, table = Names.of(snakemake), *map(pd.read_csv, (snakemake.input.accuracy, snakemake.input.table))
    times = relative(table)
    figure, (axes,) = style.panels(1, 6.4, 0.6 + 0.19 * len(table))
    rows = range(len(table))
    for number, rate in enumerate(times, start=1):
        label = "network of the host" if rate == "nan" else f"links of {rate} Mb/s"
        look = looks.line(number, label) | {"linestyle": "", "fillstyle": looks.FILLS[number % 2]}
        axes.plot(times[rate].clip(upper=EDGE), rows, clip_on=False, **look)
    axes.axvline(EDGE, color="0.6", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.95, EDGE)
    axes.set_xticks([*TICKS, EDGE], [*(f"{tick:g}" for tick in TICKS), "more,\nor never"])
    axes.set_xticks([], minor=True)
    scores = [f"{names.variant(row['variant'])} ({tables.spread(row, 'score')})" for row in table.to_dict("records")]
    axes.set_yticks(rows, scores, fontsize=7.5)
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xlabel(f"time to {100 * snakemake.params.target:g} % test accuracy, divided by the shortest")
    axes.grid(alpha=0.3)
    style.open_frame(axes)
    style.legend_of(figure, [axes])
    first = points.iloc[0]
    note = f"{names.model(first['model'])}, {data_title(first)}; {captions.setting(points)}; {captions.seeds(points)}"
    note += "; after a name: its score, and the range of 95 % of scores with other draws of seeds and of test samples"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
