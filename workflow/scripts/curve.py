"""One line per variant, against epochs of training.

A model that was trained too briefly here, or not at all, is shown with long runs that are kept in the repository. The
small print names their machine, date and commit. Curves of this machine are shown next to them if they are above
chance level."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn

from dlgs_bench.report import captions, kept, style
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names, at_ratio, data_title

VALUES = {
    "train_accuracy": ("training accuracy (%)", 100),
    "train_loss": ("training loss", 1),
    "test_perplexity": ("test perplexity", 1),
}
SIZE = (5.4, 3.9)  # inches of a panel


def lines(points: pd.DataFrame, names: Names) -> list[tuple[dict, pd.DataFrame]]:
    """(look, points) of each variant, and of each of its ratios if there are several; in the order of tables."""
    drawn, several = [], points["ratio"].nunique() > 1
    for variant in names.variants_in(points["variant"]):
        own = points[points["variant"] == variant]
        for index, (ratio, rows) in enumerate(own.groupby(-own["ratio"], dropna=False)):
            look = style.of_variant(variant, names, index)
            if several:
                look["label"] += at_ratio(-ratio)
            drawn.append((look, rows))
    return drawn


def draw(axes, points: pd.DataFrame, value: str, names: Names, where: str) -> None:
    """Draw the curves of one source; the band of several seeds is their standard deviation."""
    label, scale = VALUES[value]
    several = "sd" if points["seed"].nunique() > 1 else None
    dense = points["epoch"].nunique() > 15
    for look, rows in lines(points, names):
        rows = rows.assign(shown=rows[value] * scale)
        look |= {"markevery": 5} if dense else {}
        seaborn.lineplot(
            rows, x="epoch", y="shown", errorbar=several, err_kws={"alpha": 0.15, "lw": 0}, ax=axes, **look
        )
    ratios = points["ratio"].dropna().unique()
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    one_ratio = at_ratio(ratios[0]) if len(ratios) == 1 else ""
    first = points.iloc[0]
    axes.set_title(f"{names.model(first['model'])}, {data_title(first)}{one_ratio}{where}", fontsize=10)
    axes.legend(frameon=False, fontsize=9 if len(axes.lines) <= 8 else 7.5)
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def nothing(model: str, names: Names, snakemake) -> None:
    """Draw a figure with a text instead of curves, for a model without runs."""
    figure, axes = plt.subplots(figsize=(SIZE[0], 1.6), layout="constrained")
    axes.set_axis_off()
    words = f"{names.model(model)}: not trained here,\nand no long run of it is kept."
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=11)
    style.save(figure, "Set models.<name>.train_epochs above 0 to train it on this machine.", snakemake)


def main(snakemake) -> None:
    log_errors(snakemake)
    names, model, value = Names.of(snakemake), snakemake.params.model, snakemake.params.value
    points = pd.read_csv(snakemake.input.tidy)
    tables = kept.read(snakemake.input.kept)
    own, long = kept.instead_of(points, tables, model, set(points["ratio"].dropna()), names)
    panes = [(rows, where) for rows, where in ((own, "\nthis run"), (long, "\nkept long run")) if len(rows)]
    if not panes:
        nothing(model, names, snakemake)
        return
    if long.empty:
        panes = [(own, "")]
    figure, panels = style.panels(len(panes), *SIZE)
    for axes, (rows, where) in zip(panels, panes, strict=True):
        draw(axes, rows, value, names, where)
    notes = []
    for rows, where in panes:
        note = f"{captions.setting(rows)}; {captions.seeds(rows)}"
        note += "; band: standard deviation" if rows["seed"].nunique() > 1 else ""
        notes.append(f"{where.strip().capitalize()}: {note}" if where else note)
    style.save(figure, ". ".join(notes), snakemake)


if __name__ == "__main__":
    main(snakemake)
