"""Claims: what the paper states, and what we measured.

Each number is a quotient, with the 95 % interval of a repeat: from how much launches differ, or the n blocks of a run
that was launched once; of accuracies, from n seeds. A statement holds where the whole interval is on its side, and does
not hold where the whole interval is on the other. Where a repeat could show either, where runs are missing, disturbed
or of fewer than three blocks in one launch, or trained too short, it cannot be told here. Speed-ups are against
uncompressed in the same run."""

import pandas as pd

from dlgs_bench.paper import claims
from dlgs_bench.report import captions, tables
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names


def main(snakemake) -> None:
    log_errors(snakemake)
    timing, accuracy = (path and pd.read_csv(path) for path in map(snakemake.input.get, ("timing", "accuracy")))
    planners = pd.concat(map(pd.read_csv, snakemake.input.planners)) if snakemake.input.planners else None
    compared = claims.compare(timing, accuracy, planners)
    counts = compared.groupby("statement")["verdict"].agg(claims.overall).map(lambda words: words.partition(":")[0])
    counts = counts.value_counts()
    tally = ", ".join(f"{verdict}: {n}" for verdict, n in counts.items())
    setting = captions.setting(accuracy if timing is None else timing)
    caption = f"{captions.of_script(snakemake)} Of {counts.sum()} statements, {tally}. {setting}."
    tables.save_table(compared, claims.shown(compared, Names.of(snakemake)), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
