"""Claims: the paper's statements and our measurements.

Each number is a ratio with a 95 % interval. For times, it is the interval of a repeat, from the spread of the
launches, pooled over the methods of a model and topology, or from the n blocks of a run with one launch; for
accuracies, the interval of the mean over n seeds. Speed-ups are against uncompressed in the same run. "Holds": the
whole interval is on the statement's side of the bound. "Does not hold": the whole interval is on the other side.
"Cannot be told here": the interval contains the bound, or runs are missing, were disturbed, are too few, trained too
briefly, or were timed at another batch than the paper's. Batch: samples per worker and step."""

import pandas as pd

from dlgs_bench.paper import claims
from dlgs_bench.report import captions, kept, tables
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    timing, accuracy = (path and pd.read_csv(path) for path in map(snakemake.input.get, ("timing", "accuracy")))
    names = Names.of(snakemake)
    long_runs, of_planners, of_methods = (
        list(map(names.comparable, kept.read(paths)))
        for paths in map(snakemake.input.get, ("kept", "planners", "methods"))
    )
    planned = [rows[rows["model"].isin(names.models)] for rows in of_planners]
    planners = pd.concat(planned) if planned else None
    # Short runs of all methods count only for the statements about methods that the paper does not train.
    others = [rows[~rows["variant"].isin(claims.PAPERS)] for rows in of_methods]
    compared = claims.with_kept(claims.compare(timing, accuracy, planners), [*long_runs, *others], names.models)
    counts = pd.Series(claims.in_short(compared)).str.partition(":")[0].value_counts()
    tally = ", ".join(f"{verdict}: {n}" for verdict, n in counts.items())
    setting = captions.setting(accuracy if timing is None else timing)
    caption = f"{captions.of_script(snakemake)} Of {counts.sum()} statements, {tally}. {setting}."
    if kept_runs := [*long_runs, *others]:
        where = captions.setting(pd.concat(kept_runs))
        caption += f" Kept run: an accuracy run in results/reference-long-training or reference-methods. {where}."
    if planners is not None:
        caption += f" Statements about merging: the study of planners. {captions.setting(planners)}."
    tables.save_table(compared, claims.shown(compared, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
