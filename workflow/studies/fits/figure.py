"""The time to select and to send one bucket, in ms, against its size, and the line that the planners use.

Top: sparsification, t_s. Middle: communication, t_c. Bottom: by how much one communication delays a worker's
computation. Points: for selection the median of each size, otherwise the mean, amortised over the phases of a cycle;
full: one bucket alone, hollow: each of eight buckets sent together. Lines: for communication, a bucket's time on the
link plus one latency for all buckets sent together; otherwise straight lines through the points. Brackets: the median
and the largest distance of the line from the points, relative to the points; and how much longer a communication takes
while the workers compute."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench.report import captions, style
from dlgs_bench.report.load_runs import read_members
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.timemodel import costs
from dlgs_bench.topology import TOPOLOGIES

PARTS = {
    "sparsify_s": "sparsification (ms)",
    "communication_s": "communication (ms)",
    "taken_s": "taken from computing (ms)",
}
KEYS = ["topology", "ratio"]


def columns_of(samples: pd.DataFrame) -> list[tuple[str, float]]:
    """(topology, ratio) of the figure's columns; one column per topology if no method has a ratio."""
    columns = samples[KEYS].drop_duplicates()
    with_ratio = columns.dropna()
    others = columns[~columns["topology"].isin(with_ratio["topology"])]
    return list(pd.concat([with_ratio, others]).itertuples(index=False, name=None))


def fitted_points(rows: pd.DataFrame, part: str) -> tuple[pd.DataFrame, costs.Curve, costs.Curve | None]:
    """The measured and fitted seconds of a bucket by size and number of buckets, and the two fitted curves.

    The curves are the time of each bucket, and the time that buckets share, or None.
    """
    points = costs.amortised(rows[rows["overlapped"] == (part == "taken_s")], part)
    buckets = points["buckets"]
    points["measured_s"] = points[part] / buckets
    each, shared = costs.curve(points["entries"], points["measured_s"]), None
    if part == "communication_s":
        each, shared = costs.link_occupancy(rows)
    elif part == "taken_s":
        each = costs.interference(rows)
    points["fitted_s"] = fitted(each, shared, points["entries"], buckets)
    points["residual_s"] = points["measured_s"] - points["fitted_s"]
    return points.drop(columns=part), each, shared


def off(points: pd.DataFrame) -> str:
    """The relative errors of the fit: the median and the worst.

    R^2 is not used, since it is low for a cost that hardly depends on the size, even if the fit is good.
    """
    measured = points[points["measured_s"] > 0]
    return captions.off(measured.assign(error=measured["residual_s"] / measured["measured_s"]), "error")


def fitted(
    each: costs.Curve, shared: costs.Curve | None, entries: np.ndarray | pd.Series, buckets: int | pd.Series
) -> np.ndarray:
    return each(entries) if shared is None else each(entries) + shared(entries) / buckets


def draw(
    axes: Axes, look: dict, points: pd.DataFrame, each: costs.Curve, shared: costs.Curve | None, note: str
) -> None:
    """Draw the points of one variant and their fit, for single buckets and several in flight; ``note``: a label."""
    label = f"{look['label']} ({note})"
    for count in sorted(points["buckets"].unique()):
        here, filled = points[points["buckets"] == count], "full" if count == 1 else "none"
        x = here["entries"]
        axes.plot(x, here["measured_s"] * 1e3, **look | {"linestyle": "", "label": None, "fillstyle": filled})
        x = np.geomspace(x.min(), x.max(), 100)
        line = {"marker": "", "label": label, "linewidth": 1.2 if count == 1 else 0.6}
        axes.plot(x, fitted(each, shared, x, count) * 1e3, **look | line)
        label = None


def finish(axes: Axes, topology: str, ratio: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    style.plain_log(axes.yaxis, subs=(1,))
    words = "" if pd.isna(ratio) else f"ratio {ratio:g}, "
    axes.set_title(words + TOPOLOGIES[topology].title, fontsize=9)
    if axes.lines:
        axes.legend(frameon=False, fontsize=7 if len(axes.lines) <= 20 else 5.5)
    axes.grid(alpha=0.3)
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, samples = Names.of(snakemake), read_members(snakemake.input.samples, against=())
    columns = columns_of(samples)
    figure, grid = plt.subplots(3, len(columns), figsize=(4.2 * len(columns), 9), layout="constrained", sharex=True,
                                sharey="row", squeeze=False)  # fmt: skip
    figure.suptitle(names.model(samples["model"].iloc[0]), fontsize=10)
    residuals = []
    for row, (part, label) in zip(grid, PARTS.items(), strict=True):
        for axes, (topology, ratio) in zip(row, columns, strict=True):
            here = samples[(samples["topology"] == topology) & (samples["ratio"].isna() | (samples["ratio"] == ratio))]
            for variant in names.variants_in(here["variant"]):
                rows = here[here["variant"] == variant]
                if not rows[part].any():
                    continue
                points, each, shared = fitted_points(rows, part)
                note = off(points)
                note += "" if shared is None else f"; +{1e3 * costs.contention(rows):.1f} ms"
                draw(axes, style.of_variant(variant, names), points, each, shared, note)
                metadata = {"part": part.removesuffix("_s"), "topology": topology, "ratio": ratio, "variant": variant}
                residuals.append(points.assign(**metadata))
            finish(axes, topology, ratio)
        row[0].set_ylabel(label)
    for axes in grid[-1]:
        axes.set_xlabel("entries of the bucket before sparsification")
    sizes = samples.groupby(["variant", *KEYS, "entries", "phase"], dropna=False).size()
    note = f"{captions.setting(samples)}; n = {captions.least_to_most(sizes)} samples of each size and phase; "
    note += "+x ms: a communication takes longer while the workers compute"
    style.save(figure, note, snakemake)
    pd.concat(residuals).to_csv(snakemake.output.csv, index=False, float_format="%.6g")


if __name__ == "__main__":
    main(snakemake)
