"""Advice against measurement: predicted and measured iterations over networks that the calibration did not use.

Predicted: by the time model (equations 2 to 7 of the paper), from the calibration of the exchanges over the
configuration's own links, and from the times of layers with the same number of workers on this machine. Measured: all
variants in turns in one run. Speed-ups are over uncompressed."""

import math
from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import read_members
from dlgs_bench.report.log import Script, log_errors, refuse
from dlgs_bench.report.names import Names, ratio_of
from dlgs_bench.report.summary import summarise
from dlgs_bench.timemodel import advice
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.predict import Calibrations

CASE = ["model", "workers", "rate_mbit", "latency_ms"]  # in which all variants took turns


def predict(table: pd.DataFrame, calibrations: Calibrations) -> pd.DataFrame:
    """The measured rows with a prediction: ``predicted_s``, ``predicted_dense_s`` and ``predicted_speedup``."""
    by_workers = {workers: by_name(calibrations, workers) for workers in table["workers"].unique()}
    rows = []
    for row in table.to_dict("records"):
        there = Network(row["workers"], row["rate_mbit"], row["latency_ms"])
        here = by_workers[row["workers"]]
        own, dense = (here.get((row["model"], *one)) for one in ((row["variant"], ratio_of(row)), ("none", None)))
        if own is None or dense is None:  # without a calibration there is no prediction
            continue
        own_s, dense_s = own.iteration_s(there), dense.iteration_s(there)
        predictions = {"predicted_s": own_s, "predicted_dense_s": dense_s, "predicted_speedup": dense_s / own_s}
        rows.append(row | predictions | {"error": own_s / row["iteration_s"] - 1})
    return pd.DataFrame(rows)


def by_name(calibrations: Calibrations, workers: int) -> dict:
    return {(one.spec.training.model, one.spec.variant, one.spec.ratio): one for one in calibrations.each(workers)}


def choices(table: pd.DataFrame) -> pd.DataFrame:
    """The variant of each case that was predicted to be fastest (``first``) and the fastest variant (``best``).

    ``cost``: the time of the first divided by the time of the best. Uncompressed is one of the variants.
    """
    rows = []
    for case, own in table.groupby(CASE):
        measured = own.set_index("variant")["iteration_s"].to_dict() | {"none": own["dense_s"].median()}
        predicted = own.set_index("variant")["predicted_s"].to_dict() | {"none": own["predicted_dense_s"].iloc[0]}
        first, best = min(predicted, key=predicted.__getitem__), min(measured, key=measured.__getitem__)
        cost = measured[first] / measured[best]
        rows.append({**dict(zip(CASE, case, strict=True)), "first": first, "best": best, "cost": cost})
    return pd.DataFrame(rows)


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Predicted (ms)": tables.number(row["predicted_s"] * 1e3),
            "Measured (ms)": tables.number(row["iteration_s"] * 1e3),
            "Error": f"{100 * row['error']:+.0f} %",
            "Predicted speed-up": f"{row['predicted_speedup']:.2f}",
            "Measured speed-up": tables.spread(row, "speedup"),
            "n": row["blocks"],
        }
        for row in table.to_dict("records")
    )


def arranged(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    """The rows by model, then by network, with variants in the configuration's order."""
    models, variants = names.models_in(table["model"]), names.variants_in(table["variant"])
    ranks = {"model": models.index, "variant": variants.index}
    return table.sort_values(
        [*CASE, "variant"],
        key=lambda column: column.map(ranks[column.name]) if column.name in ranks else column,
    )


def caption(snakemake: Script, table: pd.DataFrame) -> str:
    """The caption with the number of right predictions, and their errors, without disturbed runs."""
    table = table[table["disturbed"].isna()]
    if table.empty:
        return f"{captions.of_script(snakemake)} All runs were disturbed."
    chosen, off, factor = choices(table), advice.errors(table), advice.margin(table)
    wrong = chosen[chosen["first"] != chosen["best"]]
    words = f"{captions.of_script(snakemake)} The variant that was predicted to be the fastest was the fastest in "
    words += f"{len(chosen) - len(wrong)} of {len(chosen)} runs"
    if len(wrong):
        words += f"; in the others it took {captions.least_to_most(wrong['cost'], 2)} times as long as the fastest"
    words += f". Error of the predicted time: {captions.off(table, 'error')}; of the speed-up: "
    words += f"median {100 * (off.median() - 1):.0f} %"
    if math.isfinite(factor):
        words += f", 9 of 10 within {100 * (factor - 1):.0f} %"
    words += f"; n = {len(table)} cases. In brackets: {captions.repeat(table)}. {captions.setting(table)}; "
    return f"{words}{captions.counted(table)}."


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    timed = summarise(read_members(snakemake.input.timing))
    calibrations = Calibrations(Path(run).parent for run in snakemake.input.calibration)
    table = predict(timed[timed["variant"] != "none"], calibrations)
    if table.empty:
        refuse("advice has nothing to check: studies.advise.ratio must be one of timing.ratios, and none in methods")
    table = arranged(table, names)
    tables.save_table(table, shown(table, names), caption(snakemake, table), snakemake.output)


if __name__ == "__main__":
    main(snakemake)
