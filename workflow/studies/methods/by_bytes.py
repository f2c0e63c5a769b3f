"""Bytes and accuracy: the bits that each method sends per entry of the gradient, and its test accuracy after all steps.

Named in black: the methods that no other method beats in both bits and accuracy. Also named: the usual methods."""

import pandas as pd

from dlgs_bench import looks
from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title
from dlgs_bench.report.ranking import unbeaten


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, points, table = Names.of(snakemake), *map(pd.read_csv, (snakemake.input.accuracy, snakemake.input.table))
    figure, (axes,) = style.panels(1, 7.2, 4.6)
    for row, best in zip(table.to_dict("records"), unbeaten(table), strict=True):
        usual = row["variant"] in looks.COMMON
        look = style.of_variant(row["variant"], names) if best or usual else {"color": "0.65", "marker": "."}
        at = row["bits_per_entry"], 100 * row["accuracy"]
        axes.plot(*at, **look)
        if best or usual:
            text = {
                "xytext": (5, 4),
                "textcoords": "offset points",
                "fontsize": 7.5,
                "color": "black" if best else "0.45",
            }
            axes.annotate(names.variant(row["variant"]), at, **text)
    axes.set_xscale("log")
    style.plain_log(axes.xaxis, subs=(1,))
    axes.set_xlabel("sent by a worker (bits per entry of the gradient)")
    axes.set_ylabel(f"test accuracy after {table['steps'].max()} steps (%)")
    axes.grid(alpha=0.3)
    style.open_frame(axes)
    first = points.iloc[0]
    note = f"{names.model(first['model'])}, {data_title(first)}; {captions.setting(points)}; {captions.seeds(points)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
