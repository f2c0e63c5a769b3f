"""Density against the step of training: the part of the entries that each sparsifier sends.

Lines: means over steps that are close on the logarithmic axis. Band: the smallest and the largest value of a single
step. Grey and dashed: the requested ratio. Dotted: the density in timing runs. If a line is far below the requested
ratio, the method sends much less than requested."""

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio, data_title


def draw(axes: Axes, table: pd.DataFrame, names: Names) -> None:
    """Draw all variants and ratios of one model."""
    trained, timed = (table[table["how"] == how] for how in ("trained", "timed"))
    ratios = trained["ratio"].unique()
    for look, rows in style.lines_of_variants(trained, names):
        axes.plot(rows["step"], 100 * rows["density"], **look, markevery=5)
        low, high = 100 * rows["density_low"], 100 * rows["density_high"]
        axes.fill_between(rows["step"], low, high, color=look["color"], alpha=0.15, lw=0)
        first = rows.iloc[0]
        same = (timed["variant"] == first["variant"]) & (timed["ratio"] == first["ratio"])
        for density in timed.loc[same, "density"].iloc[:1]:
            axes.axhline(100 * density, color=look["color"], linestyle=":", linewidth=1.2)
    for ratio in ratios:
        axes.axhline(100 * ratio, color="0.4", linestyle="--", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_log(axes.xaxis)
    style.plain_log(axes.yaxis)
    axes.set_xlabel("step of training")
    axes.set_ylabel("density (% of the entries)")
    one_ratio = at_ratio(ratios[0]) if len(ratios) == 1 else ""
    axes.set_title(f"{names.model(table['model'].iloc[0])}, {data_title(trained.iloc[0])}{one_ratio}", fontsize=9)
    axes.legend(frameon=False, fontsize=7)
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    models = names.models_in(table["model"])
    figure, panels = style.panels(len(models), 4.6, 3.4)
    for axes, model in zip(panels, models, strict=True):
        draw(axes, table[table["model"] == model], names)
    trained = table[table["how"] == "trained"]
    note = f"{captions.setting(trained)}; n = {trained['seed'].nunique()} seed; grey, dashed: the ratio"
    note += "; dotted: as timed" if (table["how"] == "timed").any() else ""
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
