"""Advice: the predicted iteration on the nodes and network of the configuration, the fastest first.

Predicted by the time model (equations 2 to 7 of the paper), from calibrations on this machine, without a timing run.
Speed-up: over the fastest uncompressed over the same topology."""

import json
import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from dlgs_bench.config.grid import layers_name
from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import LINKS, run_metadata
from dlgs_bench.report.log import Script, log_errors, refuse
from dlgs_bench.report.names import Names, label
from dlgs_bench.timemodel import advice, iterations
from dlgs_bench.timemodel.checked_range import outside_checked
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.predict import Calibrations
from dlgs_bench.timemodel.slowdown import slowdowns
from dlgs_bench.topology import TOPOLOGIES

LEAST_LIKELY_S = 0.005  # of computing, since a GPU takes milliseconds to start a model's kernels


def predict(snakemake: Script) -> pd.DataFrame:
    """One row for every calibrated exchange and every collective for its sums, by model, the fastest first."""
    there = Network(**snakemake.params.there)
    slower = slowdowns(snakemake.input.rates)
    checked = pd.read_csv(snakemake.input.checked)
    rows = []
    for projection in Calibrations(Path(run).parent for run in snakemake.input.calibration).each():
        slowdown = slower.get(layers_name(projection.spec), 1.0)
        metadata = {
            key: value
            for key, value in run_metadata(projection.folder, projection.spec.scheme.label).items()
            if key not in LINKS
        }
        metadata |= {"calibrated_workers": projection.here.workers, "calibrated_mbit": projection.here.rate_mbit}
        metadata |= {"slowdown": slowdown} | snakemake.params.there
        for way in projection.collective_variants(there.workers):
            row = iterations.predicted(way, there, slowdown)
            predicted_s = partial(iterations.iteration_s, way, node_speed=slowdown)
            row["needed_mbit"] = iterations.needed_mbit(way.alone_s / slowdown, predicted_s, there)
            if projection.spec.scheme.method == "none":
                exchange_s = way.exchange_s(iterations.seen_from_here(there, slowdown))
                row |= {
                    f"local_steps_{100 * least:.0f}": iterations.local_steps(way.alone_s, exchange_s, least)
                    for least in iterations.UTILISATIONS
                }
            row["computing_s"] = way.computing_s / slowdown
            rows.append(metadata | {"collective": way.collective} | row)
    factor = advice.interval(checked)
    try:
        table = advice.compared(pd.DataFrame(rows))
    except ValueError as error:
        refuse(str(error))
    other = other_batches(snakemake.input.rates)
    table["outside"] = [
        "; ".join([*outside_checked(there, dense_s, slowdown), *other.get(model, [])])
        for dense_s, slowdown, model in zip(table["dense_s"], table["slowdown"], table["model"], strict=True)
    ]
    return advice.ranked(table, np.where(table["outside"] == "", factor, factor**2))


def other_batches(paths: list[str]) -> dict[str, list[str]]:
    """model -> a warning, for models that are calibrated at another batch than the nodes'; ``paths``: rate files.

    The slowdown then compares iterations of unlike batches, so it is not the speed of a node.
    """
    rates = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    return {
        rate["model"]: [
            f"calibrated at batch {rate['batch']} for nodes with batch {rate['nodes_batch']}, whose selection and "
            f"messages are therefore predicted {rate['nodes_batch'] / rate['batch']:.3g} times too slow or too fast"
        ]
        for rate in rates
        if rate["batch"] != rate["nodes_batch"]
    }


def sentences(table: pd.DataFrame, names: Names) -> list[str]:
    """The answer: one or two sentences for each model and topology."""
    answers = []
    for model in names.models_in(table["model"]):
        for topology, rows in table[table["model"] == model].groupby("topology", sort=False):
            first = rows[rows["variant"] != "none"].iloc[:1]
            answers += [_sentence(row, names, TOPOLOGIES[topology].title) for _, row in first.iterrows()]
            answers += [_local_steps(row) for _, row in rows[rows["variant"] == "none"].iloc[:1].iterrows()]
    return answers


def _sentence(row: pd.Series, names: Names, topology: str) -> str:
    where = (
        f"{names.model(row['model'])} on {row['workers']} workers with links of {row['rate_mbit']:g} Mb/s ({topology})"
    )
    begin = {
        "pays": f"Compressing pays for {where}",
        "does not pay": f"Compressing does not pay for {where}",
        "cannot be told": f"Whether compressing pays for {where} cannot be told",
    }
    verdict = iterations.verdict(row["speedup_low"], row["speedup_high"])
    times = f"{tables.spread(row, 'speedup')} times as fast as uncompressed"
    took = f"{tables.number(row['iteration_s'] * 1e3)} instead of {tables.number(row['dense_s'] * 1e3)} ms an iteration"
    by = "" if row["collective"] == tables.ENGINE_SUMS else f" by {row['collective']}"
    said = f"{begin[verdict]}: the fastest, {label(row, names)}{by}, is predicted to be {times}, {took}."
    said += f" Limited by: {iterations.LIMITS[row['limit']]}."
    if row["outside"]:
        said += f" Warning: the estimate is less reliable than where it was checked: {row['outside']}."
    if row["computing_s"] < LEAST_LIKELY_S:
        said += (
            f" Computing takes {tables.number(row['computing_s'] * 1e3)} ms there, and less than "
            f"{LEAST_LIKELY_S * 1e3:g} ms is doubtful: measure it on a node, and set testbed.nodes.computation_ms."
        )
    return said


def _local_steps(row: pd.Series) -> str:
    """How many local steps let workers compute most of the time. ``row``: of the fastest uncompressed."""
    steps = [f"{int(row[f'local_steps_{100 * least:.0f}']):,} for {least:.0%}" for least in iterations.UTILISATIONS]
    return (
        f"Local steps between two exchanges of weights (as in DiLoCo), to compute most of the time: {', '.join(steps)}."
    )


def _needed(rate_mbit: float) -> str:
    return {0.0: "any", math.inf: "none"}.get(rate_mbit) or tables.number(rate_mbit)


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Iteration (ms)": tables.number(row["iteration_s"] * 1e3),
            "Speed-up": tables.spread(row, "speedup") if row["variant"] != "none" else f"{row['speedup']:.3g}",
            "Limited by": iterations.LIMITS[row["limit"]],
            "Without that (ms)": tables.number((row["iteration_s"] - row["limit_s"]) * 1e3),
            f"Link for {iterations.REACHED:.0%} computing (Mb/s)": _needed(row["needed_mbit"]),
        }
        for row in table.to_dict("records")
    )


def caption(snakemake: Script, table: pd.DataFrame) -> str:
    """The caption with the network, the assumptions, and the errors of checked predictions."""
    there, first = snakemake.params.there, table.iloc[0]
    checked = pd.read_csv(snakemake.input.checked)
    words = [captions.of_script(snakemake)]
    words.append(f"The network: {there['workers']} workers, {there['rate_mbit']:g} Mb/s, {there['latency_ms']:g} ms.")
    if snakemake.input.rates:
        nodes = json.loads(Path(snakemake.input.rates[0]).read_text(encoding="utf-8"))["nodes"]
        slower = captions.least_to_most(table["slowdown"])
        words.append(
            f"The nodes train {nodes['multiply_adds_s']:.3g} multiply-adds a second. We assume that they select "
            f"entries and handle messages faster than this machine by the same factor as they compute ({slower})."
        )
    else:
        words.append("We assume that the nodes compute as fast as this machine.")
    if (table["collective"] != tables.ENGINE_SUMS).any():
        words.append(
            "We assume that a dense sum is a ring (engine) or the named collective, and that a round of each "
            "collective costs as much as a round of the ring. The algorithm that an engine chooses on that network is "
            "not known."
        )
    off = 100 * (advice.errors(checked).median() - 1)
    words.append(
        f"In brackets: within a factor of {advice.interval(checked):.2f}. In a check of such advice, 9 of 10 speed-ups "
        f"were within {advice.margin(checked):.2f}, n = {len(checked)} on {checked['machine'].iloc[0]} (median error "
        f"{off:.0f} %); on other nodes the error is not known. Outside the range that was checked, the factor is "
        "squared, which is an assumption. Limited by: the part whose removal would shorten the iteration most. The "
        "table shows times only; accuracy runs show whether "
        f"a ratio keeps the accuracy. Calibrated on {' / '.join(table['machine'].unique())}, {first['engine']}, "
        f"{captions.least_to_most(table['calibrated_workers'])} workers."
    )
    return " ".join(words)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), predict(snakemake)
    answer = sentences(table, names)
    models = names.models_in(table["model"])
    table = table.sort_values("model", key=lambda column: column.map(models.index), kind="stable")
    rows = shown(table, names)
    tables.save_table(table, rows, caption(snakemake, table), snakemake.output)
    Path(snakemake.output.md).write_text(
        "\n\n".join([*answer, Path(snakemake.output.md).read_text(encoding="utf-8")]), encoding="utf-8"
    )
    print("\n".join(answer), file=sys.__stderr__)


if __name__ == "__main__":
    main(snakemake)
