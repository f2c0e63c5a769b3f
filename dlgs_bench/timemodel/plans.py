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
        raise ValueError(f"{path}: not a valid plan file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_calibration(plan: dict) -> None:
    """ValueError in one line if the calibration has changed since the plan was made from it."""
    for path, checksum in plan["calibration"].items():
        if not Path(path).exists() or hashlib.sha256(Path(path).read_bytes()).hexdigest() != checksum:
            raise ValueError(f"the plan is from another calibration than {path}")


def planned(spec: RunSpec, plan: dict) -> RunSpec:
    """``spec`` with the plan of one of its schemes; ValueError in one line if the plan is for another run."""
    label = _label_of(spec, plan)
    _refuse_other_run(spec, label, plan)
    if spec.kind == "planners" and label == spec.scheme.label:
        fields = {"plans": {name: row["plan"] for name, row in plan["comparison"].items()}}
    else:
        fields = {"groups": plan["groups"], "ratios": plan["ratios"]}
    written = json.loads(spec.to_json())
    scheme = written.get("scheme", {})
    if label in (timed_with := scheme.get("timed_with", {})):
        fields = {"timed_with": timed_with | {label: timed_with[label] | fields}}
    return RunSpec.from_dict(written | {"scheme": scheme | fields})


def _label_of(spec: RunSpec, plan: dict) -> str:
    """The label of the scheme that the plan is for; of the run's own scheme if none matches."""
    scheme_of_plan = plan["variant"], plan["ratio"], plan["bucketing"]
    for label, member in spec.members.items():
        if (member.variant, member.ratio, member.scheme.bucketing) == scheme_of_plan:
            return label
    return spec.scheme.label


def _refuse_other_run(spec: RunSpec, label: str, plan: dict) -> None:
    """ValueError in one line if the plan is for another run than the run of this scheme."""
    fields = spec.members[label].flat()
    for key in PLANNED_FOR:
        if key == "engine" and spec.kind == "accuracy":  # an accuracy run uses the plan of the timing run's engine
            continue
        if plan[key] != fields[key]:
            raise ValueError(f"the plan is for {key} {plan[key]}, this run has {key} {fields[key]}")
