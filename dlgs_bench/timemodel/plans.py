"""Reads a plan file for a run; ``workflow/scripts/plan.py`` writes it. No torch."""

import hashlib
import json
from pathlib import Path

from dlgs_bench import checksums
from dlgs_bench.spec import PLANNED_FOR, RunSpec


def read(path: Path, spec: RunSpec) -> RunSpec:
    """``spec`` with the groups of the plan file; ValueError in one line if the plan is not for this run."""
    try:
        plan = checksums.read(path)
        check_calibration(plan)
        return planned(spec, plan)
    except (KeyError, TypeError):
        raise ValueError(f"{path}: it is no plan") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_calibration(plan: dict) -> None:
    """ValueError in one line if the calibration has changed since the plan was made from it."""
    for path, known in plan["calibration"].items():
        if not Path(path).exists() or hashlib.sha256(Path(path).read_bytes()).hexdigest() != known:
            raise ValueError(f"the plan is from another calibration than {path}")


def planned(spec: RunSpec, plan: dict) -> RunSpec:
    """``spec`` with what the plan found for one of its schemes; ValueError in one line if it is for another run."""
    members, what = spec.members, (plan["variant"], plan["ratio"], plan["bucketing"])
    same = (own for own, one in members.items() if (one.variant, one.ratio, one.scheme.bucketing) == what)
    label = next(same, spec.scheme.label)
    about = members[label].flat()
    for key in PLANNED_FOR:
        if key == "engine" and spec.kind == "accuracy":  # it takes over what was planned for the timed engine
            continue
        if plan[key] != about[key]:
            raise ValueError(f"the plan is for {key} {plan[key]}, this run has {key} {about[key]}")
    if spec.kind == "planners" and label == spec.scheme.label:
        found = {"plans": {name: row["plan"] for name, row in plan["comparison"].items()}}
    else:
        found = {"groups": plan["groups"], "ratios": plan["ratios"]}
    written = json.loads(spec.to_json())
    scheme = written.get("scheme", {})
    if label in (timed_with := scheme.get("timed_with", {})):
        found = {"timed_with": timed_with | {label: timed_with[label] | found}}
    return RunSpec.from_dict(written | {"scheme": scheme | found})
