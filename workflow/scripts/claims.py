"""Claims: what the paper states, and what we measured.

Each number is a quotient with the 95 % interval of a repeat. Several launches give their interval together, pooled over
the methods of a model and topology. A single launch gives it from its n blocks, and accuracies give it from n seeds. A
statement holds if the whole interval is on its side, and does not hold if the whole interval is on the other side.
"Cannot be told here" means that the interval contains the bound, or that runs are missing, were disturbed, are too few
or trained too briefly. Speed-ups are against uncompressed in the same run."""

import pandas as pd

from dlgs_bench.paper import claims
from dlgs_bench.report import captions, kept, tables
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names

log_errors(snakemake)
timing, accuracy = (path and pd.read_csv(path) for path in map(snakemake.input.get, ("timing", "accuracy")))
planners = pd.concat(map(pd.read_csv, snakemake.input.planners)) if snakemake.input.planners else None
long_runs = kept.read(snakemake.input.kept)
names = Names.of(snakemake)
compared = claims.with_kept(claims.compare(timing, accuracy, planners), long_runs, names.models)
counts = compared.groupby("statement")["verdict"].agg(claims.overall).map(lambda words: words.partition(":")[0])
counts = counts.value_counts()
tally = ", ".join(f"{verdict}: {n}" for verdict, n in counts.items())
setting = captions.setting(accuracy if timing is None else timing)
caption = f"{captions.of_script(snakemake)} Of {counts.sum()} statements, {tally}. {setting}."
if long_runs:
    where = captions.setting(pd.concat(long_runs))
    caption += f" Kept run: a long run in results/reference-long-training. {where}."
tables.save_table(compared, claims.shown(compared, names), caption, snakemake.output)
