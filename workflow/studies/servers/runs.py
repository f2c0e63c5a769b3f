"""The timing grid once more, with a parameter server."""

from harness.config import grid
from harness.spec import RunSpec


def changed(values: dict) -> list[dict]:
    """The configuration with the study's workers and topologies, over which no collective travels."""
    study = values["studies"]["servers"]
    models = grid.only(values, list(values["models"]), study["topologies"])
    short = {"workers": study["workers"], "models": models, "timing": grid.shorter(values), "collective": "engine"}
    return [values | short] if study["topologies"] else []


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: spec for one in changed(values) for name, spec in grid.timing(one).items()}
