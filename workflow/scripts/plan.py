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
    known = costs.calibration(*map(pd.read_csv, files))
    comparison, plans = {}, {}
    for name, planner in planners(spec["bucket_bytes"] // 4).items():
        plans[name] = planner(known.sizes, known.costs)
        times = asdict(schedule(known.sizes, known.costs, plans[name]))
        comparison[name] = {"groups": len(plans[name])} | {part: times[part] for part in BREAKDOWN}
        comparison[name]["iteration_s"] += known.rest_s
    return {
        **{key: spec[key] for key in ("model", "method", "ratio", "engine", "topology", "workers")},
        "calibration": hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16],
        "planner": spec["planner"],
        "groups": plans[spec["planner"]],
        "sizes": known.sizes,
        "optimizer_and_other_s": known.rest_s,
        "fits": known.fits,
        "comparison": comparison,
    }


if __name__ == "__main__":
    style.log_errors(snakemake)
    plan = build(snakemake.input, json.loads(snakemake.params.spec))
    Path(snakemake.output[0]).write_text(json.dumps(plan, indent=1) + "\n")
