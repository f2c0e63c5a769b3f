"""Every planner's groups timed in one run, for each timing run whose method takes groups from a plan."""

from dataclasses import replace

from dlgs_bench import plugins
from dlgs_bench.config import grid
from dlgs_bench.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    return {
        f"planners/{grid.timing_name(member)}": replace(member, kind="planners")
        for spec in grid.timing(values).values()
        for member in spec.members.values()
        if plugins.describe("methods", member.scheme.method)["plan"] == "groups"
    }
