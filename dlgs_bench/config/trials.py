"""Trials: short timing runs in which the variants that a configuration will train take turns, under the conditions of
its accuracy runs, so that what those take is known beforehand. No torch."""

from dataclasses import dataclass, replace

from dlgs_bench.buckets import FIXED
from dlgs_bench.config import grid
from dlgs_bench.spec import Measurement, RunSpec, Scheme, Training

MOST = 8  # variants beside uncompressed in one trial, each of which keeps residuals
MEASURED = Measurement(blocks=1, repeats=1, width=0.05, budget_s=25)
# Fields of Training.
TIMED_BY = ("model", "data", "stand_in", "batch", "optimizer", "momentum", "betas", "weight_decay", "precision")


@dataclass(frozen=True)
class Trial:
    """``labels``: run -> what its scheme is called in the trial."""

    spec: RunSpec
    labels: dict[str, str]


def of(runs: dict[str, RunSpec]) -> dict[str, Trial]:
    """name -> the trial of some of these accuracy runs; each run is in one.

    Seeds and the length of the training decide none. Where a run takes a plan, its layers are merged by size.
    """
    alike: dict[str, dict[str, RunSpec]] = {}
    for name, spec in runs.items():
        if spec.kind == "accuracy":
            alike.setdefault(spec.training.model, {})[name] = spec
    found = {}
    for own in alike.values():
        labels = {name: spec.scheme.label for name, spec in own.items()}
        others = {one: own[name] for name, one in labels.items() if one != "none"}
        for number, start in enumerate(range(0, len(others) or 1, MOST)):
            together = dict(list(others.items())[start : start + MOST])
            name, spec = _turns(next(iter(own.values())), list(together.values()), number)
            here = {*together} | ({"none"} if number == 0 else set())
            found[name] = Trial(spec, {run: one for run, one in labels.items() if one in here})
    return found


def _turns(like: RunSpec, together: list[RunSpec], number: int) -> tuple[str, RunSpec]:
    """The trial of uncompressed and ``together`` under the conditions of the run ``like``."""
    training = Training(**{key: getattr(like.training, key) for key in TIMED_BY})
    dense = replace(like.scheme, method="none", variant="", options={}, planner=Scheme.planner)
    spec = grid.in_turns(RunSpec("timing", training, dense, like.cluster, MEASURED), list(map(_unplanned, together)))
    return f"trials/{grid.run_name(spec, f'{like.kind}-{number}')}", spec


def _unplanned(spec: RunSpec) -> RunSpec:
    """``spec`` with its layers merged by size where they are not merged by a fixed rule."""
    planner = spec.scheme.planner if spec.scheme.planner in FIXED else "size"
    return replace(spec, scheme=replace(spec.scheme, planner=planner))
