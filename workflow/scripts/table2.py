"""Table 2: the time of one iteration, of one epoch and of the whole training per model, variant and ratio.

A block times all methods in turns, in the same processes. For each method it takes the median of each phase (refresh,
reuse, ...), weighted by the number of steps of the phase in a cycle. The iteration and the speed-up are medians over
blocks, and geometric means over launches. Speed-up: uncompressed's iteration in the same blocks divided by the
method's. Over sessions: the smallest and the largest speed-up of the row in this session and in kept sessions of other
days and machines, and the number of sessions; a bracket covers one session only. Uncompressed and 16 bits are timed
with several ways of merging layers, and the fastest counts. 16 bits has no row behind a server, because a method runs
there only if it returns the sum of what the workers push unchanged, and 16 bits converts it. Buckets: the number of
buckets of the row. Batch: samples per worker and step; at a smaller batch than the paper's (32; ResNet-50: 64),
selection and exchange weigh more against computing. Of the bound: the shortest forward and backward pass of the model,
which is the lower limit of every method, divided by the iteration. Epoch and Training: calculated from the iteration.
Sent: the bytes that a worker sends per iteration. Density: the part of the entries that is sent. Links: the
median rate; links in proportion follow the machine's speed."""

from dlgs_bench.report.timing_table import main

if __name__ == "__main__":
    main(snakemake)
