"""Table 2: the time of one iteration, of one epoch and of the whole training per model, variant and ratio.

A block times all methods in turns, in the same processes. For each method it takes the median of each phase
(refresh, reuse, ...), weighted by how often the phase comes in a cycle. The iteration's time and the speed-up are
medians over blocks, and means over launches. Speed-ups are relative to uncompressed in the same blocks. Uncompressed
and 16 bits are timed with several ways of merging layers into buckets, and the fastest counts; Buckets says how many
it exchanges. Batch: samples per worker and step. Of the bound: the shortest forward and backward pass of the model,
which no exchange can undercut, divided by the iteration. An epoch's and the training's time follow from the
iteration's. Links in proportion have their rate at the machine's calibrated speed: if the machine computes k times
slower in a launch, the links of the launch are k times slower."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
