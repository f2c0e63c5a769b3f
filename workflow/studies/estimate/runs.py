"""The trials of the configuration's runs, which say beforehand what those will take."""

from harness.config import grid, trials
from harness.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: trial.spec for name, trial in trials.of(grid.expand(values)).items()}
