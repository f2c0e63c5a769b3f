"""The trials of the configuration's runs, from which their cost is estimated."""

from dlgs_bench.config import grid, trials
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: trial.spec for name, trial in trials.of(grid.expand(values)).items()}
