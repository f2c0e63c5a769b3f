"""Which runs of a configuration are not finished. No torch."""

import json
from dataclasses import replace
from pathlib import Path

from harness.spec import RunSpec


def left(folder: Path, runs: dict[str, RunSpec]) -> dict[str, RunSpec]:
    """Those of the runs, each in the folder of its name below ``folder``, that are not finished."""
    return {name: spec for name, spec in runs.items() if record(folder / name, spec) is None}


def record(folder: Path, spec: RunSpec) -> dict | None:
    """What the finished run in a folder says of itself, if there is one and it is of ``spec``, but for what it found
    out: its plan and the rate of its links."""
    try:
        run = json.loads((folder / "run.json").read_text())
        return run if _asked(RunSpec.from_dict(run["spec"])) == _asked(spec) else None
    except (OSError, ValueError):
        return None


def _asked(spec: RunSpec) -> RunSpec:
    links = {"rates_mbit": (), "calibrated_s": 0.0} if spec.cluster.in_proportion else {}
    own = replace(spec, scheme=replace(spec.scheme, groups=(), ratios=()), cluster=replace(spec.cluster, **links))
    return RunSpec.from_json(own.to_json())
