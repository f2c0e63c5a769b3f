"""Gathers the timing runs of a study into one tidy table, one row per iteration."""

from harness.report.log import log_errors
from harness.report.tidy import read_members

log_errors(snakemake)
read_members(snakemake.input.timing).to_csv(snakemake.output[0], index=False)
