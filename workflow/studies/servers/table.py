"""Parameter server: the times of Table 2 over links of several rates, with workers and one server as in the paper.

Workers push their messages. The server adds them. With ps-weights, its optimizer makes the new weights, and workers
pull dense weights. With ps-sparse, workers pull the sum in the form in which it was pushed."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
