"""Every planner's groups timed in one run, for each timing run whose method takes groups from a plan.

Uncompressed takes turns with them, with each way of merging layers that the timing run has for it."""

from dataclasses import replace

from dlgs_bench import plugins
from dlgs_bench.config import grid
from dlgs_bench.config.variants import UNCOMPRESSED
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    return {
        f"planners/{grid.timing_name(member)}": replace(grid.in_turns(member, dense), kind="planners")
        for spec in grid.timing(values).values()
        for dense in [[one for one in spec.members.values() if one.variant == UNCOMPRESSED]]
        for member in spec.members.values()
        if plugins.describe("methods", member.scheme.method)["plan"] == "groups"
    }
