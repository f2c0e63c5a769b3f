"""Selection: Table 2 with plain torch selection, as in the paper, and with compiled selection.

Methods with compiled selection are marked "(compiled)". Both kinds choose the same entries. They are timed in different
runs, so compare speed-ups, not milliseconds."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
