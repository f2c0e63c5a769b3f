"""Hybrid parallelism: the parts of an iteration with hybrid parallelism and with data-parallel training of the same
samples; one panel per model. In hybrids, half of the workers hold the fully connected layers, cut by columns, and half
hold the backbone. All workers share the cores of one machine. VGG16 with ImageNet's head takes images of 32 x 32
pixels. Diamonds: predicted times; a diamond without a bar is predicted for dedicated nodes. The legend leaves out parts
that are too short to be seen."""

import math

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.log import Script, log_errors

PARTS = {  # column of the table -> name, colour, hatch
    "computing_s": ("computing", "#56B4E9", ""),
    "features_s": ("features", "#009E73", "///"),
    "columns_s": ("columns", "#F0E442", "\\\\\\"),
    "input_gradients_s": ("input gradients", "#CC79A7", "..."),
    "gradients_s": ("gradients", "#D55E00", "xxx"),
}


HIGHEST = ["iteration_s_high", "predicted_s"]
VISIBLE = 0.01  # of the axis: a shorter bar cannot be seen


def axis_s(rows: pd.DataFrame) -> float:
    """The end of a model's axis. If the bar of a server is much longer than the others, it is cut off."""
    return 1.2 * rows.loc[~rows["way"].isin(rows.loc[rows["sender"] == "server", "way"]), HIGHEST].max(axis=None)


def visible(table: pd.DataFrame) -> set[str]:
    """The names of the parts that are long enough to be seen in the panel of at least one model."""
    panels = [rows[list(PARTS)].max() / axis_s(rows) for _, rows in table.groupby("title")]
    return {name for part, (name, *_) in PARTS.items() if any(longest[part] >= VISIBLE for longest in panels)}


def draw(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw one model: a bar for each number of workers and way, with the interval of a repeat, and the time."""
    shown_s = axis_s(rows)
    for y, row in enumerate(rows.to_dict("records")):
        left, whole = 0.0, row["iteration_s"]
        for part, (name, colour, hatch) in PARTS.items():
            axes.barh(y, row[part], left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=name)
            left += row[part]
        low, high = row["iteration_s_low"], row["iteration_s_high"]
        axes.errorbar(whole, y, xerr=[[whole - low], [high - whole]], color="black", capsize=2, lw=0.8)
        diamond = {"color": "black", "markerfacecolor": "white", "markersize": 4, "label": "" if y else "predicted"}
        axes.plot(row["predicted_s"], y, "D", clip_on=True, **diamond)
        whole, high = (row["predicted_s"],) * 2 if math.isnan(whole) else (whole, high)
        text = f"  {'→ ' if whole > shown_s else ''}{whole:.3g} s"
        axes.text(min(high, shown_s), y, text, va="center", fontsize=7.5)
    nodes = rows["repeats"].map(lambda repeats: "workers" if repeats else "dedicated")
    axes.set_yticks(range(len(rows)), rows["workers"].astype(str) + " " + nodes + ", " + rows["way"])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, shown_s)
    axes.set_xlabel("time of one iteration (s)")
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    table = pd.read_csv(snakemake.input.table)
    for end in ("iteration_s_low", "iteration_s_high"):  # few iterations have no interval
        table[end] = table[end].fillna(table["iteration_s"])
    models = list(dict.fromkeys(table["title"]))
    most = table.groupby("title").size().max()
    figure, panels = style.panels(len(models), 5.6, 0.9 + 0.27 * most, most=2)
    for axes, model in zip(panels, models, strict=True):
        rows = table[table["title"] == model]
        draw(axes, rows)
        samples = "; ".join(
            f"{row['samples']} by {row['workers']}" for _, row in rows.drop_duplicates("workers").iterrows()
        )
        axes.set_title(f"{model}; samples: {samples} workers", fontsize=9)
    style.legend_of(figure, panels, {"predicted"} | visible(table))
    table = table[table["repeats"] > 0]
    n = captions.least_to_most(table["repeats"])
    style.save(figure, f"{captions.setting(table)}; medians of n = {n} iterations; {captions.WHISKERS}", snakemake)


if __name__ == "__main__":
    main(snakemake)
