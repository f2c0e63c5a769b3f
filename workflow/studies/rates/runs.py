"""The timing runs at each rate of the testbed's links, with both kinds of selection; none without a testbed."""

from dlgs_bench.config import grid
from dlgs_bench.spec import RunSpec
from dlgs_bench.topology import ALL_GATHER


def changed(values: dict) -> list[dict]:
    """The configuration at each of the study's rates, unchanged and with compiled selection."""
    compiled = values | {"timing": values["timing"] | {"selection": "compiled"}}
    return [
        one
        for selected in (values, compiled)
        for one in grid.over_rates(selected, values["studies"]["rates"], [ALL_GATHER.name])
    ]


def runs(values: dict) -> dict[str, RunSpec]:
    return {name: spec for one in changed(values) for name, spec in grid.timing(one).items()}
