"""Time to an accuracy: how long a training takes to reach a test accuracy, divided by the time that uncompressed takes.

The number of steps is from a kept long run, on a straight line between two points of its curve, which have one epoch
between them; it is rough on VGG16, whose learning rate falls twice between its two points. Each step takes the
iteration of Table 2. 50 Gb/s: measured, over links in proportion to the paper's nodes; in brackets: the interval of
the speed-up. 25 and 10 Gb/s: predicted from the measured iteration. Its bytes take longer on these links. In brackets:
the worker computes for as much of this time as it can; the worker computes nothing in this time. No bracket contains
the noise of the number of steps. Below 1: sooner than uncompressed. Never: the run ended before it reached the
accuracy. Steps: the steps of the method divided by the steps of uncompressed."""

import math

import pandas as pd

from dlgs_bench.paper import accuracy_time
from dlgs_bench.report import captions, tables
from dlgs_bench.report.log import Script, log_errors, refuse
from dlgs_bench.report.names import Names

TARGETS = {"resnet20": (0.8, 0.88), "vgg16": (0.6, 0.65)}  # model -> test accuracies


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    """A row for each method and target, a column for each rate."""
    rows = []
    for _, rates in table.groupby(["model", *accuracy_time.METHOD, "precision", "target"], dropna=False, sort=False):
        first = rates.iloc[0]
        row = {
            "Model": names.model(first["model"]),
            "Method": names.variant(first["variant"]),
            "Ratio": "" if pd.isna(first["ratio"]) else f"{first['ratio']:g}",
            "Test accuracy (%)": f"{100 * first['target']:g}",
            "Steps": cell(first, "more_steps"),
        }
        for _, rate in rates.sort_values("gbit", ascending=False).iterrows():
            row[f"{rate['gbit']:g} Gb/s, {rate['how']}"] = cell(rate, "relative")
        rows.append(row)
    return pd.DataFrame(rows)


def cell(row: pd.Series, column: str) -> str:
    value = row[column]
    if math.isinf(value):
        return "never"
    return tables.number(value) if math.isnan(value) or f"{column}_low" not in row else tables.spread(row, column)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, inputs = Names.of(snakemake), snakemake.input
    points = accuracy_time.comparable_points(map(pd.read_csv, inputs.accuracy))
    timing = accuracy_time.timed(pd.concat(map(pd.read_csv, inputs.timing)))
    try:
        every = accuracy_time.iterations(timing)
    except ValueError as error:
        refuse(str(error))
    table = names.arrange(accuracy_time.times(points, every, TARGETS))
    timing = timing[timing["model"].isin(table["model"])]
    errors = accuracy_time.errors(pd.read_csv(inputs.rates)).to_frame("error")
    caption = (
        f"{captions.of_script(snakemake)} Trained: {captions.setting(points)}; {accuracy_time.seeds(points)}. Timed: "
    )
    caption += f"{captions.setting(timing)}; {captions.blocks(table)}. Error of such "
    caption += "predictions, from the fastest links of the kept study of link rates to its slower ones: "
    caption += f"{captions.off(errors, 'error')}, n = {len(errors)}."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
