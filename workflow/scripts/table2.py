"""Table 2: the time of one iteration, of one epoch and of the whole training per model, variant and ratio.

An iteration's time is the median of each phase (refresh, reuse, ...), weighted by how often the phase
comes in a cycle; an epoch's and the training's time follow from it. Speed-up is against
uncompressed in the same processes, in turns: the median over blocks. Ranges are the smallest and the
largest block."""

from harness.report.timing_table import build

build(snakemake)
