"""The timing runs at each rate of the testbed's links, with both kinds of selection; none without a testbed."""

from harness.config import grid
from harness.spec import RunSpec
from harness.topology import ALL_GATHER


def changed(values: dict) -> list[dict]:
    """The configuration at each of the study's rates, as it is and with fast selection."""
    fast = values | {"timing": values["timing"] | {"selection": "fast"}}
    return [
        one
        for selected in (values, fast)
        for one in grid.over_rates(selected, values["studies"]["rates"], [ALL_GATHER.name])
    ]


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: spec for one in changed(values) for name, spec in grid.timing(one).items()}
