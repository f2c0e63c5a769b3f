"""Sparse and dense steps: test accuracy of alternating sparse and dense steps at equal bytes, and during training.

Left: by T, the number of sparse steps before a dense step; one point per seed. Right: by the megabytes that a worker
has sent, means over seeds. All runs have the same constant learning rate."""

import pandas as pd

from dlgs_bench.paper.systems import never_dense
from dlgs_bench.report import captions, curves, style
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names, data_title


def name(sparse_steps: int) -> str:
    return "never dense" if never_dense(sparse_steps) else f"T = {sparse_steps}"


def main(snakemake) -> None:
    log_errors(snakemake)
    points = pd.read_csv(snakemake.input.points)
    kinds = sorted(points["sparse_steps"].unique())
    last = points[points["step"] == points["train_steps"]]
    figure, (by_t, by_bytes) = style.panels(2, 4.2, 3.4)
    for index, kind in enumerate(kinds):
        look = style.line(index, name(kind))
        own = points[points["sparse_steps"] == kind]
        ends = 100 * last.loc[last["sparse_steps"] == kind, "test_accuracy"]
        by_t.plot([index] * len(ends), ends, **look | {"linestyle": "", "label": None})
        curve = curves.mean(own)
        by_bytes.plot(curve["sent_bytes"] / 1e6, 100 * curve["test_accuracy"], **look)
    by_t.set_xticks(range(len(kinds)), [name(kind) for kind in kinds], fontsize=8)
    by_bytes.set_xlabel("sent by a worker (MB)")
    for axes in (by_t, by_bytes):
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        style.open_frame(axes)
    style.legend(figure, *by_bytes.get_legend_handles_labels())
    first = points.iloc[0]
    note = f"{Names.of(snakemake).model(first['model'])}, {data_title(first)}; ratio {first['ratio']:g}; "
    note += f"{captions.setting(points)}; {captions.number_of_seeds(points)}; "
    note += f"{captions.least_to_most(last['epoch'], 2)} of the recipe's {first['epochs']:g} epochs"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
