"""Join the study of the refresh interval: curves, and the realised density of every step."""

from pathlib import Path

from dlgs_bench.report.load_runs import read
from dlgs_bench.report.log import Script, log_errors

COLUMNS = ["model", "method", "variant", "ratio", "refresh_every", "seed", "step", "phase", "density", "sent_bytes"]


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    points = [Path(path) for path in snakemake.input.points]
    read(points).to_csv(snakemake.output.accuracy, index=False)
    steps = read([path.with_name("iterations.csv") for path in points])
    steps[COLUMNS].to_csv(snakemake.output.density, index=False)


if __name__ == "__main__":
    main(snakemake)
