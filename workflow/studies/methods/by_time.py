"""Accuracy by time: test accuracy against time in seconds; one column of panels per link rate.

The curve and the iteration at each rate are measured. The time of a point is its number of steps times the iteration
(amortised over the phases of a cycle). The time model is not used. Uncompressed and the baseline are in every panel.
Dotted: the accuracy to which the table of methods gives the time."""

from itertools import product

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, curves, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title
from dlgs_bench.report.summary import summarise


def draw(axes: Axes, variants: list[str], points: pd.DataFrame, iteration_s: dict[str, float], names: Names) -> None:
    """Draw the curves of one panel."""
    for variant in variants:
        curve = curves.mean(points[points["variant"] == variant])
        seconds = curve["step"] * iteration_s[variant]
        axes.plot(seconds, 100 * curve["test_accuracy"], **style.of_variant(variant, names))


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, points = Names.of(snakemake), pd.read_csv(snakemake.input.accuracy)
    table = summarise(pd.read_csv(snakemake.input.rates)).set_index("variant")
    rates = [(rate, rows["iteration_s"].to_dict()) for rate, rows in table.groupby("rate_mbit", dropna=False)]
    parts = curves.panes(names.variants_in(points["variant"]), ["none", snakemake.params.baseline])
    figure, panels = style.panels(len(parts) * len(rates), 3.6, 3.0, most=len(rates))
    for axes, (variants, (rate, iteration_s)) in zip(panels, product(parts, rates), strict=True):
        draw(axes, variants, points, iteration_s, names)
        axes.axhline(100 * snakemake.params.target, color="0.6", linestyle=":", linewidth=0.8)
        axes.set_xscale("log")
        style.plain_log(axes.xaxis)
        axes.set_title("network of the host" if pd.isna(rate) else f"links of {rate:g} Mb/s", fontsize=8)
        axes.set_xlabel("time (s)")
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=5.5)
        style.open_frame(axes)
    first, blocks = points.iloc[0], captions.least_to_most(table["blocks"])
    note = f"{names.model(first['model'])}, {data_title(first)}; curves: {captions.seeds(points)}; "
    note += f"iterations: medians of n = {blocks} blocks; {captions.setting(table)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
