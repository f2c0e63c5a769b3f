"""Plans the merging of one model's layers for one method and ratio, from calibrations."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from harness.report import style
from harness.timemodel import calibrated
from harness.timemodel.planner import adaptive_ratios, per_layer, planners
from harness.spec import RunSpec
from harness.timemodel.timeline import schedule

BREAKDOWN = ("forward_s", "backward_s", "sparsify_s", "communication_s", "iteration_s")


def build(paths, spec: RunSpec, cost: str) -> dict:
    """The plan file: groups, what is predicted for them, and every planner beside the chosen one."""
    files = [Path(p) for p in (paths.layers, paths.iterations, paths.samples)]
    known = calibrated.read(*files, spec, cost)
    comparison = {}
    for name, planner in planners(spec.bucket_bytes // 4).items():
        plan = planner(known.sizes, known.costs)
        times = asdict(schedule(known.sizes, known.costs, plan))
        comparison[name] = {"groups": len(plan)} | {part: times[part] for part in BREAKDOWN} | {"plan": plan}
        comparison[name]["iteration_s"] += known.rest_s
    adaptive = spec.options.get("adaptive")
    return {
        **{key: getattr(spec, key) for key in ("model", "method", "ratio", "engine", "topology", "workers")},
        "calibration": {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
        "planner": spec.planner,
        "plan_cost": cost,
        "groups": per_layer(known.sizes) if adaptive else comparison[spec.planner]["plan"],
        "ratios": adaptive_ratios(known.sizes, known.costs, spec.ratio) if adaptive else [],
        "sizes": known.sizes,
        "rest_s": known.rest_s,
        "fits": known.fits,
        "comparison": comparison,
    }


if __name__ == "__main__":
    style.log_errors(snakemake)
    plan = build(snakemake.input, RunSpec.from_json(snakemake.params.spec), snakemake.params.cost)
    Path(snakemake.output[0]).write_text(json.dumps(plan, indent=1) + "\n")
