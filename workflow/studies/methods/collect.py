"""Gathers the study of methods: curves, and timing runs as if each variant had been timed in a run of its own."""

import pandas as pd

from harness.report.log import log_errors
from harness.report.tidy import read_each, read_points


def once(timing: pd.DataFrame) -> pd.DataFrame:
    """Without the repeats of what every run times: uncompressed and the baseline."""
    firsts = timing.groupby(["model", "rate_mbit", "variant"], dropna=False)["run"].transform("first")
    return timing[timing["run"] == firsts]


log_errors(snakemake)
inputs, output, against = snakemake.input, snakemake.output, [snakemake.params.baseline]
read_points(inputs.accuracy).to_csv(output.accuracy, index=False)
once(read_each(inputs.timing, against)).to_csv(output.timing, index=False)
once(read_each(inputs.rates, against)).to_csv(output.rates, index=False)
