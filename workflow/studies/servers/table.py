"""Parameter server: Table 2's times over links of several rates, with workers and one server as in the paper.

Workers push what they send, the server adds up and its optimizer makes the new weights, which workers pull
dense (ps-weights), or it gives back the sum in the form in which it was pushed (ps-sparse)."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
