"""Join the curves of alternating sparse and dense steps, each with its T, its learning rate, and what is equal."""

from pathlib import Path

from dlgs_bench.report.load_runs import read_points
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.spec import RunSpec


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    specs = {Path(path).parent.name: RunSpec.in_folder(Path(path).parent) for path in snakemake.input}
    points = read_points(snakemake.input)
    points["sparse_steps"] = points["run"].map(lambda run: specs[run].scheme.options["sparse_steps"])
    points["train_steps"] = points["run"].map(lambda run: specs[run].training.train_steps)
    points["lr"] = points["run"].map(lambda run: specs[run].training.lr)
    points["equal"] = points["run"].map(lambda run: "steps" if "-steps-" in run else "bytes")
    points.to_csv(snakemake.output[0], index=False)


if __name__ == "__main__":
    main(snakemake)
