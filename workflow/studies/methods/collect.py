"""Join the study of methods: curves, and timing runs as if each variant had been timed in a separate run."""

from dlgs_bench.report.load_runs import read_members, read_points
from dlgs_bench.report.log import Script, log_errors


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    inputs, output, against = snakemake.input, snakemake.output, ("none", snakemake.params.baseline)
    read_points(inputs.accuracy).to_csv(output.accuracy, index=False)
    read_members(inputs.timing, against).to_csv(output.timing, index=False)
    read_members(inputs.rates, against).to_csv(output.rates, index=False)


if __name__ == "__main__":
    main(snakemake)
