"""Every planner's groups timed in one run, for each timing run whose method takes groups from a plan."""

from dataclasses import replace

from harness import plugins
from harness.config import grid
from harness.spec import RunSpec


def runs(values: dict) -> dict[str, RunSpec]:
    return {
        name.replace("timing/", "planners/"): replace(spec, kind="planners")
        for name, spec in grid.timing(values).items()
        if plugins.describe("methods", spec.scheme.method)["plan"] == "groups"
    }
