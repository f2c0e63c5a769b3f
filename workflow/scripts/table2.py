"""Table 2: the time of one iteration, of one epoch and of the whole training per model, variant and ratio.

A block times uncompressed and the method in turns, in the same processes, and takes for each the median of
each phase (refresh, reuse, ...), weighted by how often the phase comes in a cycle. The iteration's time and the
speed-up are medians over blocks, and means over launches. Computing: the part of an iteration that is forward or
backward. An epoch's and the training's time follow from the iteration's. Links in proportion have their rate at the
machine's calibrated speed: a launch in which it computes more slowly has links that are as many times slower."""

from harness.report.timing_table import build

build(snakemake)
