"""Trials: short timing runs that predict how long a configuration's accuracy runs will take. No torch.

The variants that will be trained take turns, under the conditions of the accuracy runs.
"""

from dataclasses import dataclass, replace

from dlgs_bench.buckets import FIXED
from dlgs_bench.config import grid
from dlgs_bench.spec import Measurement, RunSpec, Scheme, Training

MOST = 8  # variants in one trial in addition to uncompressed; each needs memory for its residuals
MEASURED = Measurement(blocks=1, repeats=1, width=0.05, budget_s=25)
# Fields of Training.
TIMED_BY = ("model", "data", "stand_in", "batch", "optimizer", "momentum", "betas", "weight_decay", "precision")


@dataclass(frozen=True)
class Trial:
    """``labels``: run -> the label of its scheme in the trial."""

    spec: RunSpec
    labels: dict[str, str]


def of(runs: dict[str, RunSpec]) -> dict[str, Trial]:
    """Name -> trial, for these accuracy runs. Each run belongs to one trial.

    Trials do not depend on seeds and on the length of the training. If a run reads a plan, its trial merges layers by
    size instead.
    """
    by_model: dict[str, dict[str, RunSpec]] = {}
    for name, spec in runs.items():
        if spec.kind == "accuracy":
            by_model.setdefault(spec.training.model, {})[name] = spec
    trials = {}
    for own in by_model.values():
        labels = {name: spec.scheme.label for name, spec in own.items()}
        others = {label: own[name] for name, label in labels.items() if label != "none"}
        for number, start in enumerate(range(0, len(others) or 1, MOST)):
            members = dict(list(others.items())[start : start + MOST])
            name, spec = _trial(next(iter(own.values())), list(members.values()), number)
            timed = {*members} | ({"none"} if number == 0 else set())
            trials[name] = Trial(spec, {run: label for run, label in labels.items() if label in timed})
    return trials


def _trial(like: RunSpec, members: list[RunSpec], number: int) -> tuple[str, RunSpec]:
    """The name and the spec of the trial of uncompressed and ``members``, under the conditions of the run ``like``."""
    training = Training(**{key: getattr(like.training, key) for key in TIMED_BY})
    dense = replace(like.scheme, method="none", variant="", options={}, planner=Scheme.planner)
    spec = grid.with_schemes(RunSpec("timing", training, dense, like.cluster, MEASURED), list(map(_unplanned, members)))
    return f"trials/{grid.run_name(spec, f'{like.kind}-{number}')}", spec


def _unplanned(spec: RunSpec) -> RunSpec:
    """``spec`` with its layers merged by size, unless a fixed rule merges them."""
    planner = spec.scheme.planner if spec.scheme.planner in FIXED else "size"
    return replace(spec, scheme=replace(spec.scheme, planner=planner))
