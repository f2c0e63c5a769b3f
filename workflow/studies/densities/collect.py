"""Join the densities of sparsifiers in accuracy runs, by steps, with the densities that drift in timed schemes."""

from pathlib import Path

import pandas as pd

from dlgs_bench.report.curves import over_steps
from dlgs_bench.report.load_runs import amortise, run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.spec import RunSpec


def trained(run: Path) -> pd.DataFrame:
    return over_steps(pd.read_csv(run / "iterations.csv"), "density").assign(**run_metadata(run), how="trained")


def timed(run: Path, ratios: set[float]) -> list[pd.DataFrame]:
    """A row for each scheme of a timing run with a drifting density, at the trained ratios."""
    densities, every = [], pd.read_csv(run / "iterations.csv")
    for label, member in RunSpec.in_folder(run).members.items():
        metadata = run_metadata(run, label)
        if pd.notna(metadata["refresh_every"]) and member.ratio in ratios:
            density = amortise(every[every["variant"] == label], "density")
            densities.append(pd.DataFrame([metadata | {"how": "timed", "density": density}]))
    return densities


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    densities = [trained(Path(path).parent) for path in snakemake.input.trained]
    ratios = set(pd.concat(densities)["ratio"])
    densities += [one for path in snakemake.input.timed for one in timed(Path(path).parent, ratios)]
    pd.concat(densities).to_csv(snakemake.output[0], index=False)


if __name__ == "__main__":
    main(snakemake)
