"""Plans the merging of one model's layers for one method and ratio, from calibrations."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from harness import costs, style
from harness.planner import planners
from harness.timeline import schedule

BREAKDOWN = ("forward_s", "backward_s", "sparsify_s", "communication_s", "iteration_s")


def build(paths, spec: dict) -> dict:
    """The plan file: groups, what is predicted for them, and every planner beside the chosen one."""
    files = [Path(p) for p in (paths.layers, paths.iterations, paths.samples)]
    layers, iterations, samples = map(pd.read_csv, files)
    measured, record = costs.costs(layers, iterations, samples)
    sizes = layers.groupby("layer")["entries"].first().tolist()
    rest_s = float((iterations["optimizer_s"] + iterations["other_s"]).median())
    comparison, plans = {}, {}
    for name, planner in planners(spec["bucket_bytes"] // 4).items():
        plans[name] = planner(sizes, measured)
        times = asdict(schedule(sizes, measured, plans[name]))
        comparison[name] = {"groups": len(plans[name])} | {part: times[part] for part in BREAKDOWN}
        comparison[name]["iteration_s"] += rest_s
    return {
        **{key: spec[key] for key in ("model", "method", "ratio", "engine", "topology", "workers")},
        "calibration": hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16],
        "planner": spec["planner"],
        "groups": plans[spec["planner"]],
        "sizes": sizes,
        "optimizer_and_other_s": rest_s,
        "fits": record,
        "comparison": comparison,
    }


if __name__ == "__main__":
    style.log_errors(snakemake)
    plan = build(snakemake.input, json.loads(snakemake.params.spec))
    Path(snakemake.output[0]).write_text(json.dumps(plan, indent=1) + "\n")
