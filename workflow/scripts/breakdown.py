"""Draws one iteration's parts as stacked bars, per method and ratio: Figures 11 to 13."""

import textwrap

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from harness.report import style
from harness.report.summary import summarise

SUMS = {
    "computation": ["forward_s", "backward_s"],
    "sparsification": ["sparsify_s"],
    "non-overlapped communication": ["communication_s"],
    "optimizer and other": ["optimizer_s", "other_s"],
}


def bars(table: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """(label, row) from top to bottom: uncompressed, then per ratio the methods in order, each per topology."""
    places = table["method"].map(style.in_order(table["method"]).index)
    order = table.assign(a=-table["ratio"], b=places).sort_values(["a", "b"], na_position="first").index

    def label(row) -> str:
        words = [style.method_label(row["method"])]
        words += [] if pd.isna(row["ratio"]) else [f"{row['ratio']:g}"]
        words += [] if (table["topology"] == "allgather").all() else [row["topology"]]
        return ", ".join(words)

    return [(label(row), row) for _, row in table.loc[order].iterrows()]


def draw(snakemake, model: str) -> None:
    style.log_errors(snakemake)
    timing = pd.read_csv(snakemake.input.tidy)
    table = summarise(timing[timing["model"] == model])
    rows = bars(table)
    figure, axes = plt.subplots(figsize=(6.4, 1.5 + 0.36 * len(rows)), layout="constrained")
    for y, (_, row) in enumerate(rows):
        left = 0.0
        for part, columns in SUMS.items():
            width = row[columns].sum() * 1e3
            colour, hatch = style.PARTS[part]
            axes.barh(y, width, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
                      label=part if y == 0 else None)  # fmt: skip
            left += width
        low, high = row["iteration_s_min"] * 1e3, row["iteration_s_max"] * 1e3
        axes.errorbar(left, y, xerr=[[max(0, left - low)], [max(0, high - left)]], color="black", capsize=2, lw=0.8)
        axes.text(max(left, high) + 0.01 * left, y, f" {left:.0f} ms, x{row['speedup']:.2f}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("time of one iteration (ms)")
    axes.set_xlim(right=axes.get_xlim()[1] * 1.16)
    axes.set_title(f"{style.MODELS[model]}, {style.data_label(table.iloc[0])}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    note = (
        f"{style.setting(table)}; medians of n = {style.least_to_most(table['iterations'])} "
        f"iterations in {table['blocks'].max()} blocks, whiskers: smallest and largest block; "
        "x: speed-up against uncompressed in the same run"
    )
    figure.supxlabel(textwrap.fill(note, 115), fontsize=6.5, color="0.3", x=0.02, ha="left")
    style.save_figure(figure, snakemake.output)
