"""Predictions from what the calibration runs of a configuration left. No torch."""

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from harness import plugins
from harness.spec import RunSpec
from harness.timemodel.costs import Calibration, calibration
from harness.timemodel.groups import planner_of
from harness.timemodel.links import elsewhere
from harness.timemodel.planner import planners
from harness.timemodel.timeline import schedule
from harness.topology import ALL_GATHER, Rounds, Topology, ring_rounds

SELECTIONS = ("torch", "fast")  # the paper's first


def read(layers: Path, iterations: Path, samples: Path, spec: RunSpec, cost: str = "amortised") -> Calibration:
    """The three tables of a model and of the exchanges of the method of ``spec``, as costs; ``cost`` as in
    ``calibration``."""
    within = spec.scheme.options.get("within", "group")
    return calibration(*map(pd.read_csv, (layers, iterations, samples)), within=within, cost=cost)


def spec_in(folder: Path) -> RunSpec:
    """The spec of the run in a folder."""
    return RunSpec.from_dict(json.loads((folder / "run.json").read_text())["spec"])


class Calibrations:
    """The calibration runs in some folders, found by what they measured."""

    def __init__(self, folders: Iterable[Path]):
        specs = {folder: spec_in(folder) for folder in sorted(set(folders))}
        self._layers = {f: s for f, s in specs.items() if s.kind == "layers"}
        self._exchanges = {f: s for f, s in specs.items() if s.kind == "exchanges"}

    def of(self, run: RunSpec) -> Calibration:
        """For a timing run; StopIteration if no folder holds its model or its exchanges."""
        layers = next(f for f, s in self._layers.items() if _model(s) == _model(run))
        exchanges = next(f for f, s in self._exchanges.items() if _exchange(s) == _exchange(run))
        return _read_folders(layers, exchanges, run)

    @property
    def selections(self) -> list[str]:
        """The kinds of selection that were calibrated; the paper's where nothing selects."""
        found = {spec.scheme.options.get("selection") for spec in self._exchanges.values()}
        return [kind for kind in SELECTIONS if kind in found] or [SELECTIONS[0]]

    def elsewhere(
        self, ratio: float | None = None, topology: Topology = ALL_GATHER, selection: str = SELECTIONS[0]
    ) -> dict[tuple[str, str], "Elsewhere"]:
        """(model, variant) -> its time model over a topology; each variant at ``ratio``, or at its smallest.

        Of variants that select, those whose exchanges were calibrated with this ``selection``.
        """
        found: dict[tuple[str, str], list[Path]] = {}
        for folder, spec in self._exchanges.items():
            if spec.topology == topology and spec.scheme.options.get("selection", selection) == selection:
                found.setdefault((spec.training.model, spec.variant), []).append(folder)

        def order(folder: Path) -> tuple[bool, float]:
            own = self._exchanges[folder].ratio
            return own != ratio, own or 0.0

        layers = {_model(spec): folder for folder, spec in self._layers.items()}
        chosen = {key: min(folders, key=order) for key, folders in found.items()}
        return {key: Elsewhere(layers[_model(self._exchanges[folder])], folder) for key, folder in chosen.items()}


class Elsewhere:
    """The time model of one model and variant over its topology, for other links and numbers of workers.

    ``spec``: of the calibration of its exchanges; ``here``: its workers and Mbit/s.
    """

    def __init__(self, layers: Path, exchanges: Path):
        self.spec, model = spec_in(exchanges), spec_in(layers)
        self._known = _read_folders(layers, exchanges, self.spec)
        self.here = (self.spec.cluster.workers, min(self.spec.cluster.rates_mbit))
        scope = plugins.describe("methods", self.spec.scheme.method)["scope"]
        self._plan = planners(model.scheme.bucket_bytes // 4)[planner_of(scope, model.scheme.planner)]

    def iteration_s(self, workers: int, rate_mbit: float) -> float:
        """One iteration, merged as the method's scope, or the model's planner, would merge it there, over links of the
        latency that was calibrated."""
        known, there = self._known, (workers, rate_mbit)
        rounds = sum_rounds(self.spec.scheme.collective)
        costs = elsewhere(known.costs, self.spec.topology, known.traffic, self.here, there, rounds)
        return schedule(known.sizes, costs, self._plan(known.sizes, costs)).iteration_s + known.rest_s


def sum_rounds(collective: str) -> Rounds:
    """How many rounds a dense sum makes, by the number of workers; KeyError for one that the collective refuses.

    ValueError if that depends on the data.
    """
    if collective == "engine":
        return ring_rounds
    rounds = plugins.describe("collectives", collective)["rounds"]
    if not rounds:
        why = "what it sends depends on the gradient"
        raise ValueError(f"the time model cannot take {collective} to other links: {why}; give another collective")
    return lambda workers: rounds[str(workers)]


def _read_folders(layers: Path, exchanges: Path, spec: RunSpec) -> Calibration:
    return read(layers / "layers.csv", layers / "iterations.csv", exchanges / "samples.csv", spec)


def _model(spec: RunSpec) -> tuple:
    """What the times of a model's layers depend on, of all that varies in a configuration."""
    return spec.training.model, spec.cluster.workers


def _exchange(spec: RunSpec) -> tuple:
    """What the times of an exchange depend on; the model decides how large buckets can be."""
    scheme = spec.scheme
    return (
        spec.training.model,
        scheme.method,
        scheme.options,
        scheme.topology,
        scheme.collective,
        scheme.streams,
        scheme.wire,
        spec.cluster,
    )
