"""Trials: short timing runs in which the variants that a configuration will run take turns, under the conditions of its
runs, so that what those take is known beforehand. No torch."""

from dataclasses import dataclass, replace

from harness.config import grid
from harness.spec import Measurement, RunSpec, Scheme, Training
from harness.timemodel.groups import FIXED

MOST = 8  # variants beside uncompressed in one trial, each of which keeps residuals
MEASURED = Measurement(blocks=1, repeats=1, width=0.05, limit_s=15)
TIMED_BY = ("model", "data", "stand_in", "batch", "momentum", "weight_decay", "precision")  # fields of Training


@dataclass(frozen=True)
class Trial:
    """``labels``: run -> what its variant is called in the trial."""

    spec: RunSpec
    labels: dict[str, str]


def of(runs: dict[str, RunSpec]) -> dict[str, Trial]:
    """name -> the trial of some of these accuracy and timing runs; each run is in one.

    Seeds and the length of the training decide none. Where a run takes a plan, its layers are merged by size.
    """
    alike: dict[tuple, dict[str, RunSpec]] = {}
    for name, spec in runs.items():
        alike.setdefault((spec.kind, spec.training.model, spec.scheme.topology), {})[name] = spec
    found = {}
    for own in alike.values():
        labels = {name: label(spec) for name, spec in own.items()}
        others = {one: own[name] for name, one in labels.items() if one != "none"}
        for number, start in enumerate(range(0, len(others) or 1, MOST)):
            together = dict(list(others.items())[start : start + MOST])
            name, spec = _turns(next(iter(own.values())), together, number)
            here = {*together} | ({"none"} if number == 0 else set())
            found[name] = Trial(spec, {run: one for run, one in labels.items() if one in here})
    return found


def label(spec: RunSpec) -> str:
    """What the variant of a run is called in its trial."""
    return spec.variant if spec.ratio is None else f"{spec.variant}-{spec.ratio}"


def _turns(like: RunSpec, together: dict[str, RunSpec], number: int) -> tuple[str, RunSpec]:
    """The trial of uncompressed and ``together`` under the conditions of the run ``like``."""
    beside = {}
    for one, spec in together.items():
        planner = spec.scheme.planner if spec.scheme.planner in FIXED else "size"
        beside[one] = grid.beside(spec) | ({"planner": planner} if planner != Scheme.planner else {})
    training = Training(**{key: getattr(like.training, key) for key in TIMED_BY})
    scheme = replace(like.scheme, method="none", variant="", options={}, planner=Scheme.planner, beside=beside)
    spec = RunSpec("timing", training, scheme, like.cluster, MEASURED)
    called = replace(spec, scheme=replace(scheme, variant=f"{like.kind}-{number}"))
    return f"trials/{grid.timing_name(called)}", spec
