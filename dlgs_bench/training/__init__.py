"""The training loop, checkpoints, timing runs, calibrations, the clock, and hybrid parallelism."""
