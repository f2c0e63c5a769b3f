"""What the runs of a configuration will take, from trials of them (``dlgs_bench.config.trials``), and how far earlier
estimates were off. No torch."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from dlgs_bench.spec import RunSpec


@dataclass(frozen=True)
class Cost:
    """``sent_bytes``: by each worker, as ``sent_bytes`` of the runs' tables counts them."""

    seconds: float
    sent_bytes: float


@dataclass(frozen=True)
class Phase:
    """The steps of one kind in a method's cycle: the share of steps, and what one takes."""

    share: float
    step: Cost


@dataclass(frozen=True)
class Trial:
    """What a trial measured: its start and end, the forward pass of one sample, and the phases of each variant."""

    start_s: float
    sample_s: float
    train_samples: int
    variants: dict[str, list[Phase]]

    def step(self, variant: str) -> Cost:
        """One step, in the mean of a cycle."""
        return _sum((phase.share, phase.step) for phase in self.variants[variant])


def _sum(parts: Iterable[tuple[float, Cost]]) -> Cost:
    """The sum of so many times each."""
    parts = list(parts)
    return Cost(sum(n * one.seconds for n, one in parts), sum(n * one.sent_bytes for n, one in parts))


def measured(run: dict, iterations: pd.DataFrame) -> Trial:
    """From the record ``run.json`` and the table of a trial.

    Means, not medians: a long run meets every delay that an iteration can meet. The first block, which the table lacks,
    is as long as the others. What is left of the wall time, start and end, does not grow with the steps.
    """
    spec, dense = RunSpec.from_dict(run["spec"]), iterations[iterations["variant"] == "none"]
    timed_s = iterations["iteration_s"].sum() * (1 + 1 / iterations["block"].max())
    start_s = run["wall_s"] / run.get("launched", 1) - timed_s
    variants = {variant: _phases(own) for variant, own in iterations.groupby("variant")}
    sample_s = dense["forward_s"].mean() / spec.training.batch
    return Trial(max(0.0, float(start_s)), float(sample_s), run["train_samples"], variants)


def _phases(own: pd.DataFrame) -> list[Phase]:
    means = own.groupby("phase")[["share", "iteration_s", "sent_bytes"]].mean()
    return [Phase(share, Cost(seconds, sent)) for share, seconds, sent in means.itertuples(index=False)]


def accuracy(spec: RunSpec, trial: Trial, label: str) -> Cost:
    """What an accuracy run takes whose scheme the trial calls ``label``.

    It starts, makes its steps, and tests samples, which the workers share. At each point of the curve it computes the
    true mean of the gradients, which takes about as long as an uncompressed step.
    """
    points = spec.measurement.evaluations
    tested = (points - 1) * spec.measurement.test_samples + spec.measurement.final_test_samples
    every = _sum([(spec.steps(trial.train_samples), trial.step(label))])
    evaluation_s = points * trial.step("none").seconds + tested * trial.sample_s / spec.cluster.workers
    return replace(every, seconds=trial.start_s + every.seconds + evaluation_s)


def table(runs: dict[str, RunSpec], costs: dict[str, Cost]) -> pd.DataFrame:
    """By model and kind of run: ``runs``, how many are ``finished``, which have no ``costs``, and what the others take:
    ``hours``, one after the other, ``gpu_hours``, and ``sent_bytes`` of each worker."""
    rows = []
    for name, spec in runs.items():
        own = costs.get(name, Cost(0.0, 0.0))
        gpus = spec.processes if spec.cluster.device == "cuda" else 0
        about = {"model": spec.training.model, "kind": spec.kind, "runs": 1, "finished": name not in costs}
        hours = own.seconds / 3600
        rows.append(about | {"hours": hours, "gpu_hours": gpus * hours, "sent_bytes": own.sent_bytes})
    return pd.DataFrame(rows).groupby(["kind", "model"], sort=False).sum().reset_index()


def took_s(folder: Path, run: dict) -> float:
    """What a finished run took. The record of one that was stopped and went on knows the last sitting alone, its curve
    all."""
    curve = folder / "points.csv"
    return max(run["wall_s"], float(pd.read_csv(curve)["elapsed_s"].iloc[-1]) if curve.exists() else 0.0)


def keep(file: Path, runs: dict[str, RunSpec], costs: dict[str, Cost]) -> None:
    """Write down the estimates ``costs`` of runs beside those of runs that have finished since."""
    now = {name: {"spec": _digest(runs[name]), "seconds": round(own.seconds, 1)} for name, own in costs.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept(file) | now, indent=1) + "\n", encoding="utf-8")


def kept(file: Path) -> dict[str, dict]:
    """run -> its last estimate before it finished."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def off(estimates: dict[str, dict], runs: dict[str, RunSpec], real_s: dict[str, float]) -> pd.Series:
    """run -> how many times as long as estimated it took, of finished runs that were estimated as they are now."""
    known = {name: one["seconds"] for name, one in estimates.items() if name in real_s}
    known = {name: seconds for name, seconds in known.items() if estimates[name]["spec"] == _digest(runs[name])}
    return pd.Series({name: real_s[name] / seconds for name, seconds in known.items()}, dtype=float)


def worst(ratios: pd.Series) -> str:
    """The run that was farthest from its estimate, on either side."""
    return str(np.log(ratios).abs().idxmax())


def _digest(spec: RunSpec) -> str:
    return hashlib.sha256(spec.to_json().encode()).hexdigest()[:12]
