"""Baselines: the iteration of uncompressed and of 16 bits with every way of merging layers into buckets.

All ways were timed in turns in one run per model and topology. Every other table and figure compares with the fastest
way of its run. Iteration: the mean over launches, as in Table 2. Divided by the fastest: the iteration divided by the
fastest iteration of the same method, block by block. Brackets: the 95 % interval of a repeat (Student's t). It comes
from how much the launches of a run differ, pooled over the ways of a method, or from the blocks of a run with one
launch. Links: the calibrated rate; Table 2 shows the median rate during the run."""

from pathlib import Path

import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import at_best, by_block, by_launch, over_launches, run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import columns, in_turns
from dlgs_bench.spec import RunSpec
from dlgs_bench.stats import Estimate


def rows_of(iterations: Path) -> list[dict]:
    """One row for each bucketing of each baseline in one timing run."""
    members = RunSpec.in_folder(iterations.parent).members
    timed = pd.read_csv(iterations).rename(columns={"variant": "timed"})
    seconds = {label: by_block(rows) for label, rows in timed.groupby("timed")}
    rows = []
    for fastest in at_best(timed, members):
        method = members[fastest].scheme.method
        if not plugins.describe("methods", method)["baseline"]:
            continue
        ways = [label for label, member in members.items() if member.variant == members[fastest].variant]
        ratios = in_turns({label: seconds[label] / seconds[fastest] for label in ways if label != fastest})
        for label in ways:
            row = run_metadata(iterations.parent, label)
            row |= {"bucket_bytes": members[label].scheme.bucket_bytes, "iteration_s": over_launches(seconds[label])}
            row |= columns({"ratio_to_fastest": ratios.get(label, Estimate(1.0, 1.0, 1.0))})
            row |= {"blocks": len(seconds[label])}
            rows.append(row | {"launches": len(by_launch(seconds[label]))})
    return rows


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Merged": merged(row),
            "Buckets": f"{row['num_buckets']:.0f}",
            "Iteration (ms)": f"{row['iteration_s'] * 1e3:.0f}",
            "Divided by the fastest": tables.spread(row, "ratio_to_fastest"),
            "n": row["blocks"],
        }
        for row in table.to_dict("records")
    )


def merged(row: dict) -> str:
    """The way in which layers are merged, in words."""
    return "by the planner" if row["bucketing"] == "planned" else f"up to {row['bucket_bytes'] / 2**20:g} MiB"


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    every = pd.DataFrame([row for path in snakemake.input.timing for row in rows_of(Path(path))])
    table = every.drop_duplicates(["model", "variant", "topology", "workers", "bucketing"])
    caption = f"{captions.of_script(snakemake)} {captions.setting(table)}. {captions.counted(table)}."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
