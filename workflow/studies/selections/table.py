"""Selection: Table 2 with the selection of the paper and with the selection in compiled passes (compiled).

Both choose the same entries. They are timed in different runs, so compare speed-ups, not milliseconds."""

from dlgs_bench.report.timing_table import build

build(snakemake)
