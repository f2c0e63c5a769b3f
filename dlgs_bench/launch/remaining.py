"""The runs of a configuration that are not finished. No torch."""

import json
from pathlib import Path

from dlgs_bench.spec import RunSpec


def unfinished(folder: Path, runs: dict[str, RunSpec]) -> dict[str, RunSpec]:
    """The runs that are not finished. A run has the folder of its name below ``folder``."""
    return {name: spec for name, spec in runs.items() if record(folder / name, spec) is None}


def record(folder: Path, spec: RunSpec) -> dict | None:
    """The record of a finished run of ``spec`` in a folder; None if there is none.

    The plan and the link rates of the run may differ from ``spec``: they are chosen later.
    """
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return run if RunSpec.from_dict(run["spec"]).asked() == RunSpec.from_json(spec.to_json()).asked() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
