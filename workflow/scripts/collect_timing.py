"""Join the timing runs of a study to one tidy table, one row per iteration."""

from dlgs_bench.report.load_runs import read_members
from dlgs_bench.report.log import Script, log_errors


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    read_members(snakemake.input.timing).to_csv(snakemake.output[0], index=False)


if __name__ == "__main__":
    main(snakemake)
