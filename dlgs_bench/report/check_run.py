"""Checks a run folder before a table is made from it. No torch."""

import json
from pathlib import Path

import pandas as pd

from dlgs_bench import checksums
from dlgs_bench.spec import RunSpec


def problem(folder: Path, requested: RunSpec | None = None) -> str | None:
    """What is wrong with a run folder, in one line, or None. A folder without run.json has no run.

    ``requested``: the run in the configuration, before a plan or a rate is added to it.
    """
    record = folder / "run.json"
    if not record.exists():
        return f"{record} is missing" if requested else None
    try:
        run = json.loads(record.read_text(encoding="utf-8"))
        spec = RunSpec.from_dict(run["spec"])
        damaged = [name for name, checksum in run["files"].items() if checksums.of(folder / name) != checksum]
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{record} is damaged"
    if run != checksums.signed(run):
        return f"{record} is not what the run left"
    if damaged:
        return f"{folder / damaged[0]} is not what its run wrote"
    if not requested:
        return None
    if differs := _difference(spec, requested):
        return f"{record}: the run had {differs}"
    try:
        return _unfinished(folder, spec, run)
    except (ValueError, KeyError, OSError) as error:
        return f"{folder}: a table is damaged: {error}"


def _difference(spec: RunSpec, requested: RunSpec) -> str | None:
    """The first value of a run that differs from the configuration, in words; None if all are equal."""
    had, wanted = (one.asked().flat() for one in (spec, requested))
    differs = (f"{key} {had[key]}, the configuration asks for {wanted[key]}" for key in had if had[key] != wanted[key])
    return next(differs, None)


def _unfinished(folder: Path, spec: RunSpec, run: dict) -> str | None:
    """Which table of a run has fewer rows than its spec requires, or None."""
    if spec.kind == "accuracy":
        return _cut_curve(folder, spec, run["train_samples"])
    return _cut_turns(folder, spec) if spec.kind in ("timing", "planners") else None


def _cut_curve(folder: Path, spec: RunSpec, samples: int) -> str | None:
    """What is missing in an accuracy run: it has a row per step, and one per point of the curve.

    See ``dlgs_bench.training.train``.
    """
    total = spec.steps(samples)
    due = spec.points(total) - {0}
    steps, points = (pd.read_csv(folder / f"{table}.csv")["step"].tolist() for table in ("iterations", "points"))
    if steps != list(range(1, total + 1)):
        return f"{folder / 'iterations.csv'} has {len(steps)} rows, its run has {total} steps"
    additional = 1 if spec.measurement.byte_budget > 0 else 0
    if not due <= set(points) or len(points) > len(due) + additional:
        return f"{folder / 'points.csv'} has {len(points)} rows, its run has {len(due)} points"
    return None


def _cut_turns(folder: Path, spec: RunSpec) -> str | None:
    """What is missing in a timing run: every launch has at least ``blocks`` blocks, all with the same number of rows.

    See ``dlgs_bench.training.timed``.
    """
    measurement, table = spec.measurement, folder / "iterations.csv"
    rows = pd.read_csv(table)
    rows = rows if "launch" in rows else rows.assign(launch=1)
    sizes = rows.groupby(["launch", "block"]).size()
    blocks = sizes.groupby("launch").size()
    if len(blocks) == measurement.launches and blocks.min() >= measurement.blocks and sizes.nunique() == 1:
        return None
    expected = f"at least {measurement.launches} x {measurement.blocks} complete blocks"
    return f"{table} has {len(rows)} rows, not {expected}"
