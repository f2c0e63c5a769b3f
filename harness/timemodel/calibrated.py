"""What the calibration runs of a configuration left, for plans, predictions and figures. No torch."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd

from harness import plugins
from harness.timemodel.costs import Calibration, calibration
from harness.timemodel.links import elsewhere
from harness.timemodel.planner import planners
from harness.spec import RunSpec
from harness.timemodel.timeline import schedule


def read(layers: Path, iterations: Path, samples: Path, method: RunSpec, cost: str = "amortised") -> Calibration:
    """The three tables of a model and of the exchanges of ``method``, as costs; ``cost`` as in ``calibration``."""
    within = method.options.get("within", "group")
    return calibration(*map(pd.read_csv, (layers, iterations, samples)), within=within, cost=cost)


class Elsewhere:
    """The time model of one model and method over all-gather, for other links and numbers of workers.

    ``method``: the spec of the calibration run; ``here``: its workers and Mbit/s.
    """

    def __init__(self, layers: Path, exchanges: Path):
        self._model, self.method = _spec(layers), _spec(exchanges)
        files = (layers / "layers.csv", layers / "iterations.csv", exchanges / "samples.csv")
        self._known = read(*files, self.method)
        self.here = (self.method.workers, min(self.method.rates_mbit))

    def iteration_s(self, workers: int, rate_mbit: float) -> float:
        """One iteration, merged as the method's scope, or the model's planner, would merge it there."""
        method, model, known = self.method, self._model, self._known
        there = elsewhere(known.costs.communicate, method.topology, method.ratio, self.here, (workers, rate_mbit))
        moved = replace(known.costs, communicate=there)
        scope = plugins.scope(method.method)
        planner = {"model": "all", "layer": "layer", "size": "size", "plan": model.planner}[scope]
        plan = planners(model.bucket_bytes // 4)[planner](known.sizes, moved)
        return schedule(known.sizes, moved, plan).iteration_s + known.rest_s


def all_elsewhere(folders: list[Path], ratio: float | None = None) -> dict[tuple[str, str], Elsewhere]:
    """(model, method) -> its time model, from folders of calibration runs; at ``ratio``, or the smallest."""
    specs = {folder: _spec(folder) for folder in folders}
    layers = {spec.model: folder for folder, spec in specs.items() if spec.kind == "layers"}
    exchanges = {f: s for f, s in specs.items() if s.kind == "exchanges" and s.topology == "allgather"}
    ratio = ratio or min(spec.ratio for spec in exchanges.values() if spec.ratio)
    methods = {spec.method: folder for folder, spec in exchanges.items() if spec.ratio in (None, ratio)}
    return {(model, method): Elsewhere(layers[model], methods[method]) for model in layers for method in methods}


def _spec(folder: Path) -> RunSpec:
    return RunSpec.from_dict(json.loads((folder / "run.json").read_text())["spec"])
