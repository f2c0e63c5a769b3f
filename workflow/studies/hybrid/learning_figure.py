"""Hybrid parallelism, trained: training loss and accuracy of a hybrid and of data parallelism on the same samples.

Both start with equal weights, one curve for each seed. Each point is a mean over the steps since the previous point."""

import pandas as pd

from dlgs_bench import looks
from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import data_title

VALUES = {"train_loss": (1, "training loss"), "train_accuracy": (100, "training accuracy (%)")}


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    table = pd.read_csv(snakemake.input.table)
    figure, panels = style.panels(2, 4.0, 3.0, most=2)
    for axes, (value, (scale, label)) in zip(panels, VALUES.items(), strict=True):
        for number, (way, rows) in enumerate(table.groupby("way")):  # the line of the first way lies below
            look = looks.line(number, way) | ({"markersize": 8, "fillstyle": "none"} if number == 0 else {})
            for _, curve in rows.groupby("seed"):
                axes.plot(curve["step"], scale * curve[value], **look)
                look.pop("label", None)  # one line of the legend for all seeds
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        style.open_frame(axes)
    style.legend_of(figure, panels)
    first = table.iloc[0]
    note = f"{first['title']}, {data_title(first)}; {first['samples']} samples in a step; {captions.setting(table)}; "
    style.save(figure, note + captions.number_of_seeds(table), snakemake)


if __name__ == "__main__":
    main(snakemake)
