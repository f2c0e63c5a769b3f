"""Selection: Table 2 with plain torch selection, as in the paper, and with compiled selection (compiled).

Both choose the same entries. The difference between rows of one method shows the cost of plain selection, and how much
of DLGS's gain over LAGS comes from avoiding a slow Top-K. The compiled rows were timed in separate runs."""

from dlgs_bench.report.timing_table import build

build(snakemake)
