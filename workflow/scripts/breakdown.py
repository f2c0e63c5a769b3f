"""Draws one iteration's parts of one model as stacked bars, per variant, ratio and topology."""

import matplotlib.pyplot as plt
import pandas as pd

from harness.report import captions, looks
from harness.report.log import log_errors
from harness.report.names import Names, at_ratio, data_title
from harness.report.summary import summarise
from harness.topology import ALL_GATHER, TOPOLOGIES


def bars(table: pd.DataFrame, names: Names) -> list[tuple[str, pd.Series]]:
    """(label, row) from top to bottom: variants without a ratio, then per ratio the others in order."""
    places = table["variant"].map(names.variants_in(table["variant"]).index)
    order = table.assign(a=-table["ratio"], b=places).sort_values(["a", "b"], na_position="first").index
    elsewhere = (table["topology"] != ALL_GATHER.name).any()

    def label(row) -> str:
        topology = f" ({TOPOLOGIES[row['topology']].title})" if elsewhere else ""
        return names.variant(row["variant"]) + at_ratio(row["ratio"]) + topology

    return [(label(row), row) for _, row in table.loc[order].iterrows()]


def stack(axes, y: int, row: pd.Series) -> None:
    """One iteration as a bar of its parts, with a repeat's interval, uncompressed of the same run as a dotted line,
    and its time and speed-up beside it."""
    left = 0.0
    for part, (columns, colour, hatch) in looks.PARTS.items():
        width = row[columns].sum() * 1e3
        axes.barh(y, width, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
                  label=part if y == 0 else None)  # fmt: skip
        left += width
    low, high = row["iteration_s_low"] * 1e3, row["iteration_s_high"] * 1e3
    axes.errorbar(left, y, xerr=[[max(0, left - low)], [max(0, high - left)]], color="black", capsize=2, lw=0.8)
    dense = row["dense_s"] * 1e3
    if row["variant"] != "none":
        axes.plot([dense, dense], [y - 0.4, y + 0.4], color="black", linestyle=":", linewidth=1.2)
    text = f" {left:.0f} ms, x{row['speedup']:.2f}" + ("" if pd.isna(row["disturbed"]) else ", disturbed")
    axes.text(max(left, high, dense) + 0.01 * left, y, text, va="center", fontsize=7.5)


def main() -> None:
    log_errors(snakemake)
    names, model = Names.of(snakemake), snakemake.params.model
    timing = pd.read_csv(snakemake.input.tidy)
    table = summarise(timing[timing["model"] == model])
    rows = bars(table, names)
    width = 5.2 + 0.075 * max(len(label) for label, _ in rows)
    figure, axes = plt.subplots(figsize=(width, 1.5 + 0.36 * len(rows)), layout="constrained")
    for y, (_, row) in enumerate(rows):
        stack(axes, y, row)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("time of one iteration (ms)")
    axes.set_xlim(right=axes.get_xlim()[1] * 1.16)
    axes.set_title(f"{names.model(model)}, {data_title(table.iloc[0])}")
    looks.open_frame(axes)
    looks.legend(figure, *axes.get_legend_handles_labels())
    note = (
        f"{captions.setting(table)}; medians of n = {captions.least_to_most(table['blocks'])} blocks, means over the "
        f"workers; {captions.WHISKERS}; dotted: uncompressed in the same run, and x the speed-up against it"
    )
    looks.save(figure, note, snakemake.output)


main()
