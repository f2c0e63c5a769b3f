"""Accuracy by bytes: measured test accuracy against the megabytes that a worker has sent, at a constant learning rate.

Uncompressed and the baseline are in every panel. Dotted: the number of bytes at which the table of methods compares
accuracies."""

import pandas as pd

from dlgs_bench.report import captions, curves, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, points = Names.of(snakemake), pd.read_csv(snakemake.input.accuracy)
    everywhere = ["none", snakemake.params.baseline]
    parts = curves.panes(names.variants_in(points["variant"]), everywhere)
    figure, panels = style.panels(len(parts), 4.2, 3.4)
    for axes, variants in zip(panels, parts, strict=True):
        for variant in variants:
            curve = curves.mean(points[points["variant"] == variant])
            axes.plot(curve["sent_bytes"] / 1e6, 100 * curve["test_accuracy"], **style.of_variant(variant, names))
        axes.axvline(snakemake.params.megabytes, color="0.6", linestyle=":", linewidth=0.8)
        axes.set_xscale("log")
        style.plain_log(axes.xaxis, subs=(1,))
        axes.set_xlabel("sent by a worker (MB)")
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=6.5)
        style.open_frame(axes)
    first = points.iloc[0]
    note = f"{names.model(first['model'])}, {data_title(first)}; {captions.setting(points)}; {captions.seeds(points)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
