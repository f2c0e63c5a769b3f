"""Join the finished accuracy runs to one tidy table, one row per point."""

from dlgs_bench.report.load_runs import read_points
from dlgs_bench.report.log import Script, log_errors, refuse


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    if not snakemake.params.finished:
        refuse("no accuracy run is finished yet")
    read_points(snakemake.params.finished).to_csv(snakemake.output[0], index=False)


if __name__ == "__main__":
    main(snakemake)
