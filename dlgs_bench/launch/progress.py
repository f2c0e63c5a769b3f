"""The progress of the whole workflow and the time that it needs. Each launcher prints it. No torch."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean

from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.launch.lock import START
from dlgs_bench.launch.remaining import record
from dlgs_bench.spec import RunSpec
from dlgs_bench.timemodel import length

QUEUE = "queue.json"
ANNOUNCED = "announced.json"
REST_S = 45.0  # the time of plans, tables and figures
OF_BUDGET = 0.8  # the fraction of its budget that a training run is expected to take before its model is calibrated
# The time of a workflow on fast and slow machines, divided by the estimate before a calibration.
FAST, SLOW = 0.75, 1.5


@dataclass(frozen=True)
class _Queue:
    """The runs of a workflow: name of the run's folder below ``folder`` -> spec.

    ``walls``: name of a finished run -> the seconds that it took.
    """

    folder: Path
    runs: Mapping[str, RunSpec]
    walls: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path, runs: Mapping[str, RunSpec]) -> "_Queue":
        """The queue with the records of finished runs."""
        walls = {name: _took_s(record(folder / name, spec), folder / name) for name, spec in runs.items()}
        return cls(folder, runs, {name: wall for name, wall in walls.items() if wall is not None})

    @property
    def left(self) -> list[str]:
        """The names of the unfinished runs."""
        return [name for name in self.runs if name not in self.walls]

    @property
    def calibrating(self) -> bool:
        """Whether the calibration of a model's layers is among the unfinished runs."""
        return any(self.runs[name].kind == "layers" for name in self.left)


def announce(folder: Path, runs: Mapping[str, RunSpec], alone: bool = True) -> str:
    """Write all runs of the workflow to ``folder``; return a message with the number and time of unfinished runs.

    ``runs``: name of the run's folder below ``folder`` -> spec. Nothing is written for a workflow without runs that is
    not ``alone``: another one may be training there.
    """
    if not runs and not alone:
        return "0 of 0 runs to do"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / QUEUE).write_text(json.dumps({name: spec.to_json() for name, spec in runs.items()}), encoding="utf-8")
    queue = _Queue.read(folder, runs)
    left = queue.left
    expected = {name: seconds for name in left if (seconds := _expected_s(queue, name)) is not None}
    expected_s = sum(expected.values()) + REST_S
    announced = {"begun": time.monotonic(), "process": os.getpid(), "machine": _machine()}
    if left and not queue.calibrating and len(expected) == len(left):
        announced["expected_s"] = round(expected_s, 1)
    (folder / ANNOUNCED).write_text(json.dumps(announced), encoding="utf-8")
    to_do = f"{len(left)} of {len(runs)} runs to do"
    if not expected:
        return f"{to_do}; their time is estimated while they run" if left else to_do
    about, later = clock(expected_s), ""
    if queue.calibrating:
        about = f"{max(1, int(FAST * expected_s / 60))} to {ceil(SLOW * expected_s / 60)} min"
        later = "; a better estimate follows when the models are calibrated"
    if len(expected) < len(left):
        later = "; the others are estimated after calibrations and similar runs"
    return f"{to_do}, about {about} for {len(expected)} of them{later}"


def whole(run: Path, spent_s: float, own_left_s: float | None = None, own_s: float | None = None) -> str:
    """The state of the whole workflow, in words; ``run``: the folder of a run that has taken ``spent_s``.

    ``own_left_s``, ``own_s``: the time left and the time of the whole run, by the run's own speed. If the run has no
    estimate, they count for it and for unfinished runs of the same kind and model. A run that continues from a
    checkpoint has spent less than the difference. The time that a run takes beyond its estimate is not taken from the
    other runs. No time is stated while no unfinished run has an estimate.
    """
    folder = next((above for above in run.parents if (above / QUEUE).exists()), None)
    specs = _read(folder / QUEUE) if folder else None
    if folder is None or not specs:
        return ""
    queue = _Queue.read(folder, {name: RunSpec.from_json(text) for name, text in specs.items()})
    expected = {name: _expected_s(queue, name) for name in queue.left}
    own = run.relative_to(folder).as_posix()
    if (estimate_s := expected.get(own)) is not None:
        expected[own] = max(0.0, estimate_s - spent_s)
    elif own in expected and own_left_s is not None:
        alike = [name for name in queue.left if _alike(queue.runs[name]) == _alike(queue.runs[own])]
        expected |= dict.fromkeys(alike, own_s) | {own: own_left_s}
    left_s, some_unknown = sum(filter(None, expected.values())), None in expected.values()
    if not queue.calibrating and not some_unknown:
        _expect(folder / ANNOUNCED, left_s + REST_S)
    done = f"{len(queue.walls)}/{len(queue.runs)} runs done"
    if some_unknown and not left_s:
        return f"[{done}] "
    return f"[{done}, {'at least' if some_unknown else 'about'} {clock(left_s)} left] "


def _expect(path: Path, left_s: float) -> None:
    """Keep the first estimate of all runs, if the workflow began without one.

    A run on another machine than the workflow keeps none, since their clocks are not compared.
    """
    announced = _read(path) or {}
    if "expected_s" not in announced and announced.get("machine") == _machine():
        expected_s = round(time.monotonic() - announced["begun"] + left_s, 1)
        with suppress(OSError):  # the message of which this is a part may say that the disk is full
            write_atomically(path, json.dumps(announced | {"expected_s": expected_s}).encode())


def _machine() -> str:
    """A name of this machine, which differs after each of its starts."""
    return START.read_text(encoding="utf-8").strip()


def against_announced(folder: Path) -> str:
    """The time that the workflow took, and the time that was expected when all runs could first be estimated.

    "" if another process announced its workflow.
    """
    announced = _read(folder / ANNOUNCED)
    if not announced or announced.get("process") != os.getpid():
        return ""
    took_s, expected_s = time.monotonic() - announced["begun"], announced.get("expected_s")
    expected = f"; the first estimate of all runs was {clock(expected_s)}" if expected_s else ""
    return f"{clock(took_s)}{expected}"


def spent(folder: Path) -> str:
    """The time of the finished runs below ``folder``, by kind, in words; "" if there are none."""
    walls: dict[str, float] = {}
    for path in sorted(folder.rglob("run.json")):
        kind = path.parent.parent.name
        walls[kind] = walls.get(kind, 0.0) + (_took_s(_read(path), path.parent) or 0.0)
    return ", ".join(f"{kind} {clock(wall)}" for kind, wall in walls.items())


def clock(seconds: float) -> str:
    """Minutes and seconds, such as "2:05 min"; from two hours on, hours and minutes, such as "4:31 h"."""
    if seconds >= 7200:
        return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d} h"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def _expected_s(queue: _Queue, name: str) -> float | None:
    """The expected time of a run, or None if it cannot be estimated yet.

    A run with a budget, except a training run, takes its budget, or longer if its least number of blocks does. Another
    run takes the mean time of the finished runs of its kind and model. If there are none, a training run is estimated
    from the calibration of its model's layers, or from its budget.
    """
    spec = queue.runs[name]
    budget_s = spec.measurement.budget_s
    if budget_s and spec.kind != "accuracy":
        return max(budget_s, _least_s(queue, spec))
    walls = [wall for finished, wall in queue.walls.items() if _alike(queue.runs[finished]) == _alike(spec)]
    if walls:
        return fmean(walls)
    if spec.kind == "accuracy":
        training_s = _training_s(queue, spec)
        return OF_BUDGET * budget_s if training_s is None and budget_s else training_s
    return None


def _alike(spec: RunSpec) -> tuple:
    """What runs that take about the same time have in common."""
    training = spec.training
    trained = (training.train_epochs, training.train_steps) if spec.kind == "accuracy" else ()
    return spec.kind, training.model, *trained


def _least_s(queue: _Queue, spec: RunSpec) -> float:
    """The time of a timing run with its fewest blocks, from the calibration of its model's layers; 0 without one."""
    speed = _speed(queue, spec)
    return speed.timing_s(spec) if speed and spec.kind == "timing" else 0.0


def _speed(queue: _Queue, spec: RunSpec) -> length.Speed | None:
    """The speed of this machine in training a run's model with as many workers.

    None before its calibration, or if a table of the calibration is missing or corrupt.
    """
    alike = "layers", spec.training.model, spec.training.data, spec.cluster.workers
    finished = ((name, queue.runs[name]) for name in queue.walls)
    calibrated = (
        name
        for name, one in finished
        if (one.kind, one.training.model, one.training.data, one.cluster.workers) == alike
    )
    with suppress(StopIteration, OSError, ValueError, TypeError, KeyError):
        return length.speed(queue.folder / next(calibrated))
    return None


def _training_s(queue: _Queue, spec: RunSpec) -> float | None:
    """The time of an accuracy run, estimated from the calibration of its model's layers; None without calibration."""
    speed = _speed(queue, spec)
    if speed is None:
        return None
    if spec.training.most_epochs:
        spec = replace(spec, training=replace(spec.training, train_epochs=speed.epochs(spec)))
    return speed.training_s(spec)


def _read(path: Path) -> dict | None:
    """The content of a JSON file, or None if it is missing or invalid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _took_s(run: dict | None, folder: Path) -> float | None:
    """The seconds that a run with this record took, or None if the record is missing or corrupt."""
    valid = isinstance(run, dict) and isinstance(run.get("wall_s"), float | int)
    return length.took_s(folder, run) if valid else None
