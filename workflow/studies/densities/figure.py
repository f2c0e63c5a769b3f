"""Density of buckets: what each bucket sent, as a part of its entries, in the order of exchange: from the last layer to
the first.

Trained: the mean over the last half of an accuracy run's steps. Timed: a timing run, which starts at the state where a
gradient of constant size would end, amortised over the refresh interval. Dashed: the ratio asked for. Buckets differ,
since accuracy runs take a plan that is the same on every machine."""

import numpy as np
import pandas as pd

from harness.report import captions, looks
from harness.report.log import log_errors
from harness.report.names import Names

LOOKS = {"timed": {"color": "#0072B2", "linewidth": 2.5}, "trained": {"color": "#D55E00", "linewidth": 1.2}}


def draw(axes, buckets: pd.DataFrame) -> None:
    """A step for each bucket, as wide as its part of the model."""
    for how, look in LOOKS.items():
        found = buckets[buckets["how"] == how].sort_values("start")
        ends = np.cumsum(found["entries"]) / found["entries"].sum()
        axes.stairs(found["density"], [0, *ends], baseline=None, label=how, **look)
    axes.axhline(buckets["ratio"].iloc[0], color="0.4", linestyle="--", linewidth=0.8)
    axes.set_yscale("log")
    looks.plain_log(axes.yaxis)
    axes.set_xlabel("part of the model's entries exchanged so far")
    axes.set_ylabel("density")
    axes.grid(alpha=0.3)
    looks.open_frame(axes)


def main() -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input[0])
    models = names.models_in(table["model"])
    panes = [
        (model, variant, ratio, rows)
        for model in models
        for (variant, ratio), rows in table[table["model"] == model].groupby(["variant", "ratio"])
    ]
    figure, panels = looks.panels(len(panes), 4.0, 2.8)
    words = []
    for axes, (model, variant, ratio, rows) in zip(panels, panes, strict=True):
        draw(axes, rows)
        axes.set_title(f"{names.model(model)}, {names.variant(variant)}, ratio {ratio:g}", fontsize=9)
        words.append(f"{names.model(model)} {rows.loc[rows['how'] == 'trained', 'steps'].iloc[0]}")
    looks.legend(figure, *panels[0].get_legend_handles_labels())
    note = f"trained: {', '.join(dict.fromkeys(words))}; timed: {captions.setting(table[table['how'] == 'timed'])}"
    looks.save(figure, f"{note}; one run each", snakemake)


main()
