"""Link rates: the time of one iteration per method over links of several rates, measured as in Table 2.

Every link of the testbed has the rate in the row. DLGS merges layers by a separate plan at each rate."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
