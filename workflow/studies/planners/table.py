"""Planners: the iteration with each plan for merging layers, predicted and measured.

All plans of one model, variant and ratio are timed in one run, in turns with uncompressed, which is timed with several
ways of merging layers. Speed-ups are over the fastest of these (column: uncompressed). Predicted: by the time model
(equations 2 to 7 of the paper) from the calibration, plus the measured times of the optimizer, of the rest, and of the
wait for slower workers. Planners with the same groups are timed once. Batch: samples per worker and step. Above exact:
by how much the predicted iteration exceeds the prediction for the planner exact. Times and speed-ups are medians over
blocks, and geometric means over launches. Brackets: the 95 % interval of a repeat (Student's t). It comes from how much
the launches of a run differ, pooled over its plans, or from the blocks of a run with one launch. n: blocks."""

import json
from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import ABOUT, at_best, by_block, by_launch, read
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import columns, in_turns
from dlgs_bench.spec import RunSpec
from dlgs_bench.stats import Estimate


def rows_of(timed: pd.DataFrame, iterations: Path, plan: Path) -> list[dict]:
    """One row per planner of a run; ``timed``: the rows of ``iterations``."""
    planned = json.loads(plan.read_text(encoding="utf-8"))
    groups = pd.read_csv(iterations.with_name("groups.csv"))
    timed_as = groups.groupby("variant")["timed_as"].first()
    members = {label: m for label, m in RunSpec.in_folder(iterations.parent).members.items() if m.variant == "none"}
    (fastest,) = at_best(timed, members)
    seconds = {label: by_block(rows) for label, rows in timed.groupby("timed")}
    iterations_s = in_turns(seconds)
    speedups = in_turns({label: seconds[fastest] / own for label, own in seconds.items() if label != fastest})
    exact = timed_as["exact"]
    to_exact = in_turns({label: own / seconds[exact] for label, own in seconds.items() if label != exact})
    rows = []
    for planner, predicted in planned["comparison"].items():
        own = timed_as[planner]
        row = {key: timed[key].iloc[0] for key in ABOUT}
        row |= {"planner": planner, "timed_as": own, "groups": predicted["groups"], "dense": fastest}
        row |= {"predicted_s": predicted["iteration_s"], "blocks": len(seconds[own])}
        row |= {"launches": len(by_launch(seconds[own]))}
        row |= columns({"iteration_s": iterations_s[own], "dense_s": iterations_s[fastest], "speedup": speedups[own]})
        row |= columns({"ratio_to_exact": to_exact.get(own, Estimate(1.0, 1.0, 1.0))})
        rows.append(row)
    best = min(row["predicted_s"] for row in rows)
    return [row | {"predicted_above_exact": row["predicted_s"] / best - 1} for row in rows]


def by_planner(iterations: Path, timed: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run for each of its planners, and for each bucketing of uncompressed; column ``planner``."""
    groups = pd.read_csv(iterations.with_name("groups.csv"))
    timed_as = groups.groupby("variant", sort=False)["timed_as"].first()
    return pd.concat(timed[timed["timed"] == own].assign(planner=planner) for planner, own in timed_as.items())


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Planner": row["planner"] + ("" if row["timed_as"] == row["planner"] else f" (= {row['timed_as']})"),
            "Batch": row["batch"],
            "Groups": row["groups"],
            "Predicted (ms)": f"{row['predicted_s'] * 1e3:.0f}",
            "Above exact": f"{row['predicted_above_exact'] * 100:.1f} %",
            "Measured (ms)": tables.spread(row, "iteration_s", 1e3, 0),
            "Speed-up": tables.spread(row, "speedup"),
            "Uncompressed (ms)": f"{tables.spread(row, 'dense_s', 1e3, 0)}{merging(row['dense'])}",
            "n": row["blocks"],
        }
        for row in table.to_dict("records")
    )


def merging(dense: str) -> str:
    """The bucketing of the fastest uncompressed, from the label of its scheme."""
    _, _, bucketing = dense.partition("-")
    return f", {bucketing}" if bucketing else ""


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    pairs = list(zip(map(Path, snakemake.input.timing), map(Path, snakemake.input.plans), strict=True))
    timed = {iterations: read([iterations]) for iterations, _ in pairs}
    pd.concat(by_planner(*one) for one in timed.items()).to_csv(snakemake.output.timing, index=False)
    table = names.arrange(pd.DataFrame(row for pair in pairs for row in rows_of(timed[pair[0]], *pair)))
    caption = f"{captions.of_script(snakemake)} {captions.setting(table)}."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
