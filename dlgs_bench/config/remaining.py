"""Which runs of a configuration are not finished. No torch."""

import json
from pathlib import Path

from dlgs_bench.spec import RunSpec


def left(folder: Path, runs: dict[str, RunSpec]) -> dict[str, RunSpec]:
    """Those of the runs, each in the folder of its name below ``folder``, that are not finished."""
    return {name: spec for name, spec in runs.items() if record(folder / name, spec) is None}


def record(folder: Path, spec: RunSpec) -> dict | None:
    """What the finished run in a folder says of itself, if there is one and it is of ``spec``, but for what it found
    out: its plan and the rate of its links."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return run if RunSpec.from_dict(run["spec"]).asked() == RunSpec.from_json(spec.to_json()).asked() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
