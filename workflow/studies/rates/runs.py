"""The timing runs at each rate of the testbed's links; none without a testbed."""

from harness.config import grid
from harness.spec import RunSpec
from harness.topology import ALL_GATHER


def changed(values: dict) -> list[dict]:
    """The configuration at each of the study's rates."""
    study = values["studies"]["rates"]
    models = grid.only(values, study["models"], [ALL_GATHER.name])
    if values["network"] != "testbed" or not models:
        return []
    short = values | {"models": models, "timing": grid.shorter(values) | {"ratios": [study["ratio"]]}}
    return [grid.over_links(short, rate) for rate in study["rates_mbit"]]


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: spec for one in changed(values) for name, spec in grid.timing(one).items()}
