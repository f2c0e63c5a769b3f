"""Sparse and dense steps: test accuracy of alternating sparse and dense steps, at the end and during training.

Left: by T, the number of sparse steps before a dense step; one point per seed. Right: during training, means over
seeds. First row: at equal bytes. A second row, if it was trained: at equal steps. Learning rates are constant; each T
is shown with the learning rate of its lowest training loss."""

import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench import looks
from dlgs_bench.paper.systems import at_best_rate, comparable, never_dense
from dlgs_bench.report import captions, curves, style
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title

ALONG = {"bytes": ("sent_bytes", 1e-6, "sent by a worker (MB)"), "steps": ("step", 1, "step")}


def name(sparse_steps: int) -> str:
    return "never dense" if never_dense(sparse_steps) else f"T = {sparse_steps}"


def draw(by_t: Axes, during: Axes, points: pd.DataFrame, kinds: list[int], equal: str) -> None:
    """Draw the two panels of the runs that are compared at equal bytes or at equal steps."""
    last = points[points["step"] == points["train_steps"]]
    column, scale, label = ALONG[equal]
    for index, kind in enumerate(kinds):
        look = looks.line(index, name(kind))
        ends = 100 * last.loc[last["sparse_steps"] == kind, "test_accuracy"]
        by_t.plot([index] * len(ends), ends, **look | {"linestyle": "", "label": None})
        curve = curves.mean(points[points["sparse_steps"] == kind])
        during.plot(curve[column] * scale, 100 * curve["test_accuracy"], **look)
    by_t.set_xticks(range(len(kinds)), [name(kind) for kind in kinds], fontsize=8)
    by_t.set_title(f"at equal {equal}", fontsize=10)
    during.set_xlabel(label)
    for axes in (by_t, during):
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    points = at_best_rate(comparable(pd.read_csv(snakemake.input.points)))
    kinds, equals = sorted(points["sparse_steps"].unique()), sorted(points["equal"].unique())
    figure, panels = style.panels(2 * len(equals), 4.2, 3.4, most=2)
    for row, equal in enumerate(equals):
        draw(*panels[2 * row : 2 * row + 2], points[points["equal"] == equal], kinds, equal)
    style.legend_of(figure, [panels[1]])
    first, last = points.iloc[0], points[points["step"] == points["train_steps"]]
    note = f"{Names.of(snakemake).model(first['model'])}, {data_title(first)}; ratio {first['ratio']:g}; "
    note += f"{captions.setting(points)}; {captions.number_of_seeds(points)}; "
    note += f"{captions.least_to_most(last['epoch'], 2)} of the recipe's {first['epochs']:g} epochs"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
