"""Write the link rate at which a model is timed: it keeps the nodes' ratio of computation to communication."""

import json
from pathlib import Path

import pandas as pd

from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.spec import RunSpec
from dlgs_bench.timemodel.slowdown import Nodes, slowdown


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    iterations = pd.read_csv(snakemake.input.iterations)
    computation_s = float((iterations["forward_s"] + iterations["backward_s"]).median())
    run = json.loads(Path(snakemake.input.iterations).with_name("run.json").read_text(encoding="utf-8"))
    training = RunSpec.from_dict(run["spec"]).training
    rate = {"model": training.model, "batch": training.batch, "data": training.data, "samples": len(iterations)}
    # Times of other models are left out, so that changing them repeats no run of this model.
    measured_ms = snakemake.params.nodes.get("computation_ms", {}).items()
    nodes = snakemake.params.nodes | {"computation_ms": {key: ms for key, ms in measured_ms if key == training.model}}
    rate |= {"forward_s": float(iterations["forward_s"].median()), "nodes": nodes}
    rate |= slowdown(training.model, snakemake.params.batch, computation_s, Nodes(**nodes))
    Path(snakemake.output[0]).write_text(json.dumps(rate, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(snakemake)
