"""The duration of an accuracy run, and the epochs that fit into its budget. No torch, no pandas.

Both follow from the calibration of the model's layers.
"""

import csv
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from dlgs_bench import checksums
from dlgs_bench.spec import RunSpec

START_S = 8.0  # from the start of a run to its first step
STEP = 1.2  # the time of a training step divided by the calibrated time of forward, backward and update
TIMED = 1.5  # the same for a timed step, which also exchanges over slowed links: 1.1 to 2.9 for the paper's models
BFLOAT16 = 0.6  # the time of a step in bfloat16 divided by the time in float32, on processors where it is faster
PARTS = 20  # a run trains a multiple of most_epochs / PARTS, so a small drift of the machine does not repeat runs


@dataclass(frozen=True)
class Speed:
    """The speed of this machine in training a model."""

    model: str
    data: str
    workers: int
    sample_s: float  # forward pass of one sample
    trained_sample_s: float  # forward, backward and update, for each sample of a worker's batch
    train_samples: int
    test_samples: float = math.inf  # older calibrations do not have it

    def step_s(self, spec: RunSpec) -> float:
        """Seconds of one step of a run."""
        precision = BFLOAT16 if spec.training.precision == "bfloat16" else 1
        return STEP * precision * self.trained_sample_s * spec.training.batch

    def rest_s(self, spec: RunSpec) -> float:
        """Seconds of an accuracy run without its steps: its start and its evaluations."""
        tested = spec.measurement.tested(self.test_samples)
        return START_S + tested * self.sample_s / spec.cluster.workers

    def training_s(self, spec: RunSpec) -> float:
        """Seconds of an accuracy run."""
        return self.rest_s(spec) + spec.steps(self.train_samples) * self.step_s(spec)

    def timing_s(self, spec: RunSpec) -> float:
        """Seconds of a timing run with the fewest blocks, if each scheme has one phase."""
        measurement = spec.measurement
        steps = len(spec.members) * measurement.blocks * measurement.repeats
        return measurement.launches * (START_S + steps * TIMED * self.trained_sample_s * spec.training.batch)

    def epochs(self, spec: RunSpec) -> float:
        """The epochs that fit into the run's budget: a multiple of ``most_epochs / PARTS``, at least one part."""
        most = spec.training.most_epochs
        whole = replace(spec, training=replace(spec.training, train_epochs=most))
        steps = whole.steps(self.train_samples)
        fit = (spec.measurement.budget_s - self.rest_s(spec)) / self.step_s(spec) / steps
        return most * min(PARTS, max(1, int(fit * PARTS))) / PARTS


def speed(calibration: Path) -> Speed:
    """The speed from the folder of a finished calibration of layers."""
    spec = RunSpec.in_folder(calibration)
    with (calibration / "iterations.csv").open(encoding="utf-8") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    batch = spec.training.batch
    forward_s, iteration_s = (median(row[key] for row in rows) / batch for key in ("forward_s", "iteration_s"))
    run = json.loads((calibration / "run.json").read_text(encoding="utf-8"))
    samples = run["train_samples"], run.get("test_samples", math.inf)
    return Speed(spec.training.model, spec.training.data, spec.cluster.workers, forward_s, iteration_s, *samples)


def took_s(folder: Path, run: dict) -> float:
    """The duration of a finished run, from its record. If it was stopped and resumed, its curve has the whole duration.

    A damaged curve counts as missing.
    """
    try:
        with (folder / "points.csv").open(encoding="utf-8") as file:
            return max([run["wall_s"], *(float(row["elapsed_s"]) for row in csv.DictReader(file))])
    except (OSError, TypeError, ValueError, KeyError):
        return run["wall_s"]


def with_length(path: Path, spec: RunSpec) -> RunSpec:
    """``spec`` with the number of epochs in the file; ValueError in one line if the file is not valid for this run."""
    try:
        length = checksums.read(path)
        for key, own in length_info(spec).items():
            if length[key] != own:
                raise ValueError(f"the length is for {key} {length[key]}, this run has {key} {own}")
        return replace(spec, training=replace(spec.training, train_epochs=length["train_epochs"]))
    except (KeyError, TypeError):
        raise ValueError(f"{path}: not a valid length file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def length_info(spec: RunSpec) -> dict:
    """The fields of a run that decide its length, together with the machine."""
    training = spec.training
    return {
        "model": training.model,
        "data": training.data,
        "batch": training.batch,
        "most_epochs": training.most_epochs,
        "budget_s": spec.measurement.budget_s,
    }
