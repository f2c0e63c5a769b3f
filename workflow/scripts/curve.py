"""A line for each variant, against epochs."""

import matplotlib.pyplot as plt
import pandas as pd

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names, at_ratio, data_title

VALUES = {"train_accuracy": ("training accuracy (%)", 100), "train_loss": ("training loss", 1)}


def lines(points: pd.DataFrame, names: Names) -> list[tuple[dict, pd.DataFrame]]:
    """(look, points) of each variant, and of each of its ratios where there are several; in the order of tables."""
    found, several = [], points["ratio"].nunique() > 1
    for variant in names.variants_in(points["variant"]):
        own = points[points["variant"] == variant]
        for place, (ratio, rows) in enumerate(own.groupby(-own["ratio"], dropna=False)):
            look = style.of_variant(variant, names, place)
            if several:
                look["label"] += at_ratio(-ratio)
            found.append((look, rows))
    return found


def main() -> None:
    log_errors(snakemake)
    names, model = Names.of(snakemake), snakemake.params.model
    label, scale = VALUES[snakemake.params.value]
    points = pd.read_csv(snakemake.input.tidy)
    points = points[points["model"] == model]
    figure, axes = plt.subplots(figsize=(5.2, 3.9), layout="constrained")
    several_seeds = points["seed"].nunique() > 1
    for look, rows in lines(points, names):
        by_step = rows.groupby("step")
        values, epochs = by_step[snakemake.params.value], by_step["epoch"].mean()
        mean, sd = values.mean() * scale, values.std() * scale
        axes.plot(epochs, mean, **look)
        if several_seeds:
            axes.fill_between(epochs, mean - sd, mean + sd, color=look["color"], alpha=0.15, linewidth=0)
    ratios = points["ratio"].dropna().unique()
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    one_ratio = at_ratio(ratios[0]) if len(ratios) == 1 else ""
    axes.set_title(f"{names.model(model)}, {data_title(points.iloc[0])}{one_ratio}")
    axes.legend(frameon=False, fontsize=8 if len(axes.lines) <= 8 else 6.5)
    axes.grid(alpha=0.3)
    style.open_frame(axes)
    note = f"{captions.setting(points)}; {captions.seeds(points)}"
    note += "; band: standard deviation" if several_seeds else ""
    style.save(figure, note, snakemake)


main()
