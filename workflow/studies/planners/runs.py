"""One run with the groups of all planners, for each timing run whose method reads groups from a plan.

All bucketings of uncompressed in the timing run take turns with them."""

from dataclasses import replace

from dlgs_bench import plugins
from dlgs_bench.config import grid
from dlgs_bench.config.variants import UNCOMPRESSED
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    specs = {}
    for spec in grid.timing(values | {"timing": grid.shorter(values)}).values():
        dense = [member for member in spec.members.values() if member.variant == UNCOMPRESSED]
        for member in spec.members.values():
            if plugins.describe("methods", member.scheme.method)["plan"] == "groups":
                run = replace(grid.in_turns(member, dense), kind="planners")
                specs[f"planners/{grid.timing_name(member)}"] = run
    return specs
