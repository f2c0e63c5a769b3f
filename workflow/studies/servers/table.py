"""Parameter server: the times of Table 2 over links of several rates, with workers and one server as in the paper.

Workers push their messages. The server adds them. With ps-weights, its optimizer makes the new weights, and workers
pull dense weights. With ps-sparse, workers pull the sum in the form in which it was pushed. 16 bits has no row behind a
server, because a method runs there only if it returns the sum of what the workers push unchanged, and 16 bits converts
it."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
