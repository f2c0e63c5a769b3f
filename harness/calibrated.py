"""What the calibration runs of a configuration left, for figures of the time model. No torch."""

import json
from pathlib import Path

import pandas as pd

from harness import plugins
from harness.planner import planners
from harness.spec import RunSpec
from harness.timeline import Costs, Plan


def load(folders: list[Path]) -> tuple[dict, dict]:
    """Of all-gather: model -> (spec, tables of its layers), and (method, ratio) -> (spec, samples)."""
    layers, exchanges = {}, {}
    for folder in folders:
        run = json.loads((folder / "run.json").read_text())
        spec = RunSpec.from_json(json.dumps(run["spec"]))
        if spec.kind == "layers":
            layers[spec.model] = (spec, {p.stem: pd.read_csv(p) for p in folder.glob("*.csv")})
        elif spec.topology == "allgather":
            exchanges[spec.method, spec.ratio] = (spec, pd.read_csv(folder / "samples.csv"))
    return layers, exchanges


def plan_of(method: RunSpec, model: RunSpec, sizes: list[int], costs: Costs) -> Plan:
    """The groups that a method would exchange at these costs: by its scope, or by the model's planner."""
    name = {"model": "all", "layer": "layer", "size": "size", "plan": model.planner}[plugins.scope(method.method)]
    return planners(model.bucket_bytes // 4)[name](sizes, costs)
