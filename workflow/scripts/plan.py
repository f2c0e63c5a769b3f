"""Plan which layers of one model are merged for one variant and ratio, from calibrations."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlgs_bench.buckets import per_layer
from dlgs_bench.config.grid import planned_by
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.spec import PLANNED_FOR, RunSpec
from dlgs_bench.timemodel import predict
from dlgs_bench.timemodel.planner import adaptive_ratios, planners
from dlgs_bench.timemodel.timeline import schedule

BREAKDOWN = ("forward_s", "backward_s", "sparsify_s", "communication_s", "iteration_s")


def build(paths: Any, spec: RunSpec, cost: str) -> dict:
    """The plan file: groups, their predicted times, and the same of every other planner."""
    files = [Path(p) for p in (paths.layers, paths.iterations, paths.samples)]
    calibration = predict.read(*files, spec, cost)
    comparison = {}
    for name, planner in planners(spec.scheme.bucket_bytes // 4).items():
        plan = planner(calibration.sizes, calibration.costs)
        times = asdict(schedule(calibration.sizes, calibration.costs, plan))
        comparison[name] = {"groups": len(plan)} | {part: times[part] for part in BREAKDOWN} | {"plan": plan}
        comparison[name]["iteration_s"] += calibration.rest_s
    takes = planned_by(spec)
    groups, ratios = comparison[spec.scheme.planner]["plan"], []
    if takes == "ratios":
        groups, ratios = per_layer(calibration.sizes), adaptive_ratios(calibration.sizes, calibration.costs, spec.ratio)
    metadata = spec.flat()
    return {
        **{key: metadata[key] for key in PLANNED_FOR},
        "calibration": {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
        "plan_cost": cost,
        "plan": takes,
        "groups": groups,
        "ratios": ratios,
        "sizes": calibration.sizes,
        "rest_s": calibration.rest_s,
        "fits": calibration.fits,
        "comparison": comparison,
    }


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    plan = build(snakemake.input, RunSpec.from_json(snakemake.params.spec), snakemake.params.cost)
    Path(snakemake.output[0]).write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(snakemake)
