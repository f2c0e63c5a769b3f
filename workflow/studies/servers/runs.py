"""The timing runs with a parameter server at each rate of the testbed's links; none without a testbed."""

from dlgs_bench.config import grid
from dlgs_bench.spec import RunSpec


def changed(values: dict) -> list[dict]:
    """The configuration with the study's workers at each of its rates. A server needs the engine's collectives."""
    study = values["studies"]["servers"]
    served = values | {"server_workers": study["workers"], "collective": "engine"}
    return grid.over_rates(served, study, study["topologies"])


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: spec for one in changed(values) for name, spec in grid.timing(one).items()}
