"""Selection: Table 2 with the sparsifiers' selection as the paper had it and as compiled passes (compiled).

Both choose the same entries, so that rows of one method differ only in the time to choose them: how much of
DLGS's gain over LAGS is the slow Top-K that it avoids."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
