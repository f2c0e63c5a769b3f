"""How long an accuracy run takes, and how many of its epochs fit into its budget, from the calibration of its model's
layers. No torch, no pandas."""

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from dlgs_bench import checksums
from dlgs_bench.spec import RunSpec

START_S = 8.0  # of a run, until its first step
STEP = 1.4  # a training step, divided by forward, backward and update alone, as calibrated
PARTS = 20  # a run trains a whole number of these parts of most_epochs, so that small drifts of a machine repeat none


@dataclass(frozen=True)
class Speed:
    """What the calibration of a model's layers says of this machine."""

    model: str
    data: str
    workers: int
    sample_s: float  # forward pass of one sample
    trained_sample_s: float  # forward, backward and update, for each sample of a worker's batch
    train_samples: int

    def step_s(self, spec: RunSpec) -> float:
        """Seconds of one step of an accuracy run."""
        return STEP * self.trained_sample_s * spec.training.batch

    def rest_s(self, spec: RunSpec) -> float:
        """Seconds of an accuracy run without its steps: its start and its tests."""
        measured = spec.measurement
        tested = (measured.evaluations - 1) * measured.test_samples + measured.final_test_samples
        return START_S + tested * self.sample_s / spec.cluster.workers

    def training_s(self, spec: RunSpec) -> float:
        """Seconds of an accuracy run."""
        return self.rest_s(spec) + spec.steps(self.train_samples) * self.step_s(spec)

    def epochs(self, spec: RunSpec) -> float:
        """How many epochs fit into the run's budget: all, or a whole number of ``PARTS``, at least one."""
        most = spec.training.most_epochs
        whole = replace(spec, training=replace(spec.training, train_epochs=most))
        steps = whole.steps(self.train_samples)
        fit = (spec.measurement.budget_s - self.rest_s(spec)) / self.step_s(spec) / steps
        return most * min(PARTS, max(1, int(fit * PARTS))) / PARTS


def speed(calibration: Path) -> Speed:
    """From the folder of a finished calibration of layers."""
    spec = RunSpec.in_folder(calibration)
    with (calibration / "iterations.csv").open(encoding="utf-8") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    batch = spec.training.batch
    forward_s, iteration_s = (median(row[key] for row in rows) / batch for key in ("forward_s", "iteration_s"))
    samples = json.loads((calibration / "run.json").read_text(encoding="utf-8"))["train_samples"]
    about = spec.training.model, spec.training.data, spec.cluster.workers
    return Speed(*about, forward_s, iteration_s, samples)


def with_length(path: Path, spec: RunSpec) -> RunSpec:
    """``spec`` with the number of epochs in the file; ValueError in one line if it is no such file, or one for another
    model or budget."""
    try:
        length = checksums.read(path)
        for key, own in about(spec).items():
            if length[key] != own:
                raise ValueError(f"the length is for {key} {length[key]}, this run has {key} {own}")
        return replace(spec, training=replace(spec.training, train_epochs=length["train_epochs"]))
    except (KeyError, TypeError):
        raise ValueError(f"{path}: it is no length of a training") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def about(spec: RunSpec) -> dict:
    """What decides the length of an accuracy run, besides the machine."""
    training = spec.training
    return {
        "model": training.model,
        "data": training.data,
        "batch": training.batch,
        "most_epochs": training.most_epochs,
        "budget_s": spec.measurement.budget_s,
    }
