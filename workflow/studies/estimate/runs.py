"""The trials of the configuration's runs, which say beforehand what those will take."""

from dlgs_bench.config import grid, trials
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: trial.spec for name, trial in trials.of(grid.expand(values)).items()}
