"""Advice, checked: predicted and measured speed-ups over networks that the calibration did not use.

Diagonal: predicted equals measured. Dashed: the factor within which 9 of 10 predictions lie. Left of 1 and below 1,
compression costs time. In the shaded quarters, the advice is wrong about whether compression pays."""

import math

import matplotlib.pyplot as plt
import pandas as pd

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.timemodel import advice


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input.table)
    if table["disturbed"].isna().any():
        table = table[table["disturbed"].isna()]
    figure, axes = plt.subplots(figsize=(5.2, 4.8), layout="constrained")
    both = table[["predicted_speedup", "speedup"]].to_numpy()
    low, high = min(both.min() * 0.8, 0.8), max(both.max() * 1.25, 1.25)
    factor = advice.margin(table)
    axes.plot([low, high], [low, high], color="0.4", linewidth=0.8)
    for off in (factor, 1 / factor) if math.isfinite(factor) else ():
        axes.plot([low, high], [low * off, high * off], color="0.4", linewidth=0.6, linestyle="--")
    axes.fill_between([low, 1], 1, high, color="0.92", zorder=0)
    axes.fill_between([1, high], low, 1, color="0.92", zorder=0)
    for variant in names.variants_in(table["variant"]):
        rows = table[table["variant"] == variant]
        wide = style.whiskers(rows["speedup"], rows["speedup_low"], rows["speedup_high"])
        look = style.of_variant(variant, names) | {"linestyle": "", "markersize": 5, "alpha": 0.85}
        axes.errorbar(rows["speedup"], rows["predicted_speedup"], xerr=wide, elinewidth=0.6, **look)
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        style.plain_log(axis)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_xlabel("measured speed-up")
    axes.set_ylabel("predicted speed-up")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    style.open_frame(axes)
    models = ", ".join(names.model(model) for model in names.models_in(table["model"]))
    note = f"{models}; {captions.setting(table)}; {len(table)} cases, {captions.blocks(table)} each; "
    note += f"whiskers: {captions.repeat(table)}"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
