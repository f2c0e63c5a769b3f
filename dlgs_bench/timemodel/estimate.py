"""Estimates the cost of runs from trials (``dlgs_bench.config.trials``), and checks earlier estimates. No torch."""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from dlgs_bench.spec import RunSpec


@dataclass(frozen=True)
class RunCost:
    """The cost of a run or a step. ``sent_bytes``: by each worker, as in the tables of runs."""

    seconds: float
    sent_bytes: float


@dataclass(frozen=True)
class Phase:
    """The steps of one kind in a method's cycle: their share of the cycle, and the cost of a step."""

    share: float
    step: RunCost


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial: the time of start and end, of the forward pass of one sample, and the variants' phases."""

    start_s: float
    sample_s: float
    train_samples: int
    variants: dict[str, list[Phase]]
    test_samples: float = math.inf  # older trials do not have it

    def step(self, variant: str) -> RunCost:
        """The mean cost of a step over a cycle."""
        return _sum((phase.share, phase.step) for phase in self.variants[variant])


def _sum(parts: Iterable[tuple[float, RunCost]]) -> RunCost:
    """The sum of costs, each multiplied by its number."""
    parts = list(parts)
    return RunCost(sum(n * one.seconds for n, one in parts), sum(n * one.sent_bytes for n, one in parts))


def measured(run: dict, iterations: pd.DataFrame) -> TrialResult:
    """The result of a trial from its record ``run.json`` and its table ``iterations``.

    It uses means instead of medians, since a long run also has all rare delays. The rest of the wall time is start,
    warm-up and end, which do not grow with the number of steps.
    """
    spec, dense = RunSpec.from_dict(run["spec"]), iterations[iterations["variant"] == "none"]
    start_s = run["wall_s"] / run.get("launched", 1) - iterations["iteration_s"].sum()
    variants = {variant: _phases(own) for variant, own in iterations.groupby("variant")}
    sample_s = dense["forward_s"].mean() / spec.training.batch
    tested = run.get("test_samples", math.inf)
    return TrialResult(max(0.0, float(start_s)), float(sample_s), run["train_samples"], variants, tested)


def _phases(own: pd.DataFrame) -> list[Phase]:
    means = own.groupby("phase")[["share", "iteration_s", "sent_bytes"]].mean()
    return [Phase(share, RunCost(seconds, sent)) for share, seconds, sent in means.itertuples(index=False)]


def accuracy(spec: RunSpec, trial: TrialResult, label: str) -> RunCost:
    """The cost of an accuracy run whose scheme has the label ``label`` in the trial.

    It is the sum of start, steps and evaluations. The workers share the test samples. At each point of the curve, the
    true mean of the gradients takes about as long as an uncompressed step. A run with a budget trains only the steps
    that fit into it.
    """
    points = spec.measurement.evaluations
    tested = spec.measurement.tested(trial.test_samples)
    every = _sum([(spec.steps(trial.train_samples), trial.step(label))])
    evaluation_s = points * trial.step("none").seconds + tested * trial.sample_s / spec.cluster.workers
    whole = replace(every, seconds=trial.start_s + every.seconds + evaluation_s)
    budget_s = spec.measurement.budget_s
    if not budget_s or whole.seconds <= budget_s:
        return whole
    return RunCost(budget_s, whole.sent_bytes * budget_s / whole.seconds)


def table(runs: dict[str, RunSpec], costs: dict[str, RunCost]) -> pd.DataFrame:
    """The number of runs and the cost of unfinished runs, by model and kind of run.

    ``costs``: the costs of unfinished runs. ``hours``: if runs follow each other. ``sent_bytes``: of each worker.
    """
    rows = []
    for name, spec in runs.items():
        own = costs.get(name, RunCost(0.0, 0.0))
        gpus = spec.processes if spec.cluster.device == "cuda" else 0
        metadata = {"model": spec.training.model, "kind": spec.kind, "runs": 1, "finished": name not in costs}
        hours = own.seconds / 3600
        rows.append(metadata | {"hours": hours, "gpu_hours": gpus * hours, "sent_bytes": own.sent_bytes})
    return pd.DataFrame(rows).groupby(["kind", "model"], sort=False).sum().reset_index()


def keep(file: Path, runs: dict[str, RunSpec], costs: dict[str, RunCost]) -> None:
    """Add the estimates ``costs`` of unfinished runs to the file, which keeps the estimates of finished runs."""
    now = {name: {"spec": _digest(runs[name]), "seconds": round(own.seconds, 1)} for name, own in costs.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(read_estimates(file) | now, indent=1) + "\n", encoding="utf-8")


def read_estimates(file: Path) -> dict[str, dict]:
    """run -> its last estimate before it finished."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def off(estimates: dict[str, dict], runs: dict[str, RunSpec], real_s: dict[str, float]) -> pd.Series:
    """run -> its duration divided by its estimate, for finished runs whose spec has not changed since the estimate."""
    valid = {
        name: estimate["seconds"]
        for name, estimate in estimates.items()
        if name in real_s and estimate["spec"] == _digest(runs[name])
    }
    return pd.Series({name: real_s[name] / seconds for name, seconds in valid.items()}, dtype=float)


def worst(ratios: pd.Series) -> str:
    """The run whose ratio is farthest from 1."""
    return str(np.log(ratios).abs().idxmax())


def _digest(spec: RunSpec) -> str:
    return hashlib.sha256(spec.to_json().encode()).hexdigest()[:12]
