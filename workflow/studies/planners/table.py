"""Planners: the iteration that each plan for merging layers gives, predicted and measured.

All plans of one model, variant and ratio are timed in one run, in turns with uncompressed. Predicted by eqs 2-7
from the calibration, plus optimizer, other and waiting for slower workers. Planners that found the same groups are
timed once. Times and speed-ups (against uncompressed) are medians over blocks; in brackets: the 95 %
interval of a repeat, from the blocks of one run (Student's t)."""

import json
from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import ABOUT, read
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import compare


def rows_of(iterations: Path, plan: Path) -> list[dict]:
    """One row per planner of the run in the folder of ``iterations``."""
    timed, planned = read([iterations]), json.loads(plan.read_text())
    groups = pd.read_csv(iterations.with_name("groups.csv"))
    timed_as = groups.groupby("variant")["timed_as"].first()
    dense = timed[timed["timed"] == "none"]
    rows = []
    for planner, predicted in planned["comparison"].items():
        own = timed[timed["timed"] == timed_as[planner]]
        row = {key: timed[key].iloc[0] for key in ABOUT}
        row |= {"planner": planner, "timed_as": timed_as[planner], "groups": predicted["groups"]}
        row |= {"predicted_s": predicted["iteration_s"], **compare(own, dense), "n": len(own)}
        rows.append(row)
    best = min(row["predicted_s"] for row in rows)
    return [row | {"predicted_above_exact": row["predicted_s"] / best - 1} for row in rows]


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Planner": row["planner"] + ("" if row["timed_as"] == row["planner"] else f" (= {row['timed_as']})"),
            "Groups": row["groups"],
            "Predicted (ms)": f"{row['predicted_s'] * 1e3:.0f}",
            "Above exact": f"{row['predicted_above_exact'] * 100:.1f} %",
            "Measured (ms)": tables.spread(row, "iteration_s", 1e3, 0),
            "Speed-up": tables.spread(row, "speedup"),
            "n": row["n"],
        }
        for row in table.to_dict("records")
    )


log_errors(snakemake)
names = Names.of(snakemake)
pairs = zip(map(Path, snakemake.input.timing), map(Path, snakemake.input.plans), strict=True)
table = names.arrange(pd.DataFrame(row for pair in pairs for row in rows_of(*pair)))
caption = f"{captions.of_script(snakemake)} {captions.setting(table)}."
tables.save_table(table, shown(table, names), caption, snakemake.output)
