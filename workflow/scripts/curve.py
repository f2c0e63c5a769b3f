"""One line per variant, against epochs of training. Below: the difference to uncompressed at the same step and seed.

Lines are means over the seeds, and bands reach from the smallest to the largest of the seeds. Dotted: epochs at which
the recipe lowers the learning rate. The lower panel shows the differences of the second half of the training in full;
larger differences at the start can leave it. A model that was trained too briefly here, or not at all, is shown with
long runs that are kept in the repository. The small print names their machine, date and commit. Curves of this machine
are shown next to them if they are above chance level."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dlgs_bench import looks
from dlgs_bench.report import captions, kept, style
from dlgs_bench.report.load_runs import with_uncompressed
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio, data_title

VALUES = {
    "train_accuracy": ("training accuracy (%)", "minus uncompressed\n(points)", 100),
    "train_loss": ("training loss", "minus uncompressed", 1),
    "test_perplexity": ("test perplexity per token\n(lower is better)", "minus uncompressed", 1),
}
SIZE = (5.4, 3.9)  # inches of a panel
LOWER = 2.0  # inches of the panel of differences
MOST_INSIDE = 5  # lines of a legend inside the axes; more would hide curves
RANGE = ("pi", 100)  # seaborn's name for the band from the smallest to the largest value


def minus_uncompressed(points: pd.DataFrame, value: str) -> pd.DataFrame:
    """The points of the other variants, with ``value`` minus uncompressed's at the same step with the same seed."""
    both = with_uncompressed(points, value, "seed", "step")
    others = both[both["variant"] != "none"]
    return others.assign(**{value: others[value] - others["dense"]}).dropna(subset=[value])


def draw(axes: Axes, points: pd.DataFrame, value: str, names: Names, recipe: dict) -> None:
    """Draw the curves of one source, and mark where the learning rate falls if the recipe has the runs' epochs."""
    *_, scale = VALUES[value]
    several = RANGE if points["seed"].nunique() > 1 else None
    dense = points["epoch"].nunique() > 15
    for look, rows in style.lines_of_variants(points, names):
        rows = rows.assign(shown=rows[value] * scale)
        look |= {"mec": look["color"]} | ({"markevery": 5} if dense else {})
        seaborn.lineplot(
            rows, x="epoch", y="shown", errorbar=several, err_kws={"alpha": 0.15, "lw": 0}, ax=axes, **look
        )
    first, label = points.iloc[0], "learning rate falls"
    for epoch in recipe["lr_steps"] if recipe.get("epochs") == first["epochs"] else []:
        falls = epoch * first["train_epochs"] / first["epochs"]
        if falls < points["epoch"].max():
            axes.axvline(falls, color="0.4", linestyle=":", linewidth=1, zorder=0, label=label)
            label = None
    axes.set_xlabel("")
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def upper(axes: Axes, points: pd.DataFrame, value: str, names: Names, recipe: dict, where: str) -> None:
    """Draw the curves with a title."""
    draw(axes, points, value, names, recipe)
    axes.set_ylabel(VALUES[value][0])
    ratios, first = points["ratio"].dropna().unique(), points.iloc[0]
    one_ratio = at_ratio(ratios[0]) if len(ratios) == 1 else ""
    axes.set_title(f"{names.model(first['model'])}, {data_title(first)}{one_ratio}{where}", fontsize=10)


def draw_legends(figure: Figure, panels: Sequence[Axes]) -> None:
    """Draw a legend in each panel, or one legend for all above them if a panel has many lines."""
    if all(len(axes.get_legend_handles_labels()[1]) <= MOST_INSIDE for axes in panels):
        for axes in panels:
            # The background hides the dotted lines behind the words.
            axes.legend(facecolor="white", edgecolor="none", framealpha=1, fontsize=9)
        return
    for axes in panels:
        axes.get_legend().remove()  # seaborn draws one
    style.legend_of(figure, panels)


def lower(axes: Axes, differences: pd.DataFrame, value: str, names: Names, recipe: dict) -> None:
    """Draw the differences, on a scale that the differences of the second half of the training fill."""
    draw(axes, differences, value, names, recipe)
    axes.get_legend().remove()  # seaborn draws one
    *_, label, scale = VALUES[value]
    late = scale * differences.loc[differences["epoch"] >= differences["epoch"].max() / 2, value]
    least, most = min(0, late.min()), max(0, late.max())
    margin = 0.15 * (most - least) or 1
    axes.set_ylim(least - margin, most + margin)
    axes.axhline(0, color=looks.BLACK, linewidth=1)
    axes.set_ylabel(label)


def nothing(model: str, names: Names, snakemake: Script) -> None:
    """Draw a figure with a text instead of curves, for a model without runs."""
    figure, axes = plt.subplots(figsize=(SIZE[0], 1.6), layout="constrained")
    axes.set_axis_off()
    words = f"{names.model(model)}: not trained here,\nand no long run of it is kept."
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=11)
    style.save(figure, "Set models.<name>.train_epochs above 0 to train it on this machine.", snakemake)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, model, value = Names.of(snakemake), snakemake.params.model, snakemake.params.value
    points = pd.read_csv(snakemake.input.tidy)
    tables = kept.read(snakemake.input.kept)
    own, long = kept.instead_of(points, tables, model, set(points["ratio"].dropna()), names)
    params = snakemake.params
    panes = [(own, "\nthis run" if len(long) else "", params.recipe), (long, "\nkept long run", params.kept_recipe)]
    panes = [pane for pane in panes if len(pane[0])]
    if not panes:
        nothing(model, names, snakemake)
        return
    differences = [minus_uncompressed(rows, value) for rows, *_ in panes]
    heights = [SIZE[1], LOWER] if any(map(len, differences)) else [SIZE[1]]
    figure, grid = plt.subplots(
        len(heights), len(panes), figsize=(SIZE[0] * len(panes), 0.7 + sum(heights)), height_ratios=heights,
        sharex="col", layout="constrained", squeeze=False,
    )  # fmt: skip
    for column, (rows, where, recipe), difference in zip(grid.T, panes, differences, strict=True):
        upper(column[0], rows, value, names, recipe, where)
        if len(difference):
            lower(column[1], difference, value, names, recipe)
        elif len(heights) > 1:
            column[1].set_visible(False)
            column[0].tick_params(labelbottom=True)
        column[1 if len(difference) else 0].set_xlabel("epoch")
    draw_legends(figure, grid[0])
    notes = []
    for rows, where, _ in panes:
        note = f"{captions.setting(rows)}; {captions.seeds(rows)}"
        note += "; band: smallest to largest of the seeds" if rows["seed"].nunique() > 1 else ""
        notes.append(f"{where.strip().capitalize()}: {note}" if where else note)
    style.save(figure, ". ".join(notes), snakemake)


if __name__ == "__main__":
    main(snakemake)
