"""Runs of hybrid parallelism and of data parallelism with the same samples per iteration; none without a testbed.

A ring and halving-doubling take turns in one run. A server needs a run with one more process. If the bytes of all
iterations would take longer than ``limit_s``, a run has fewer iterations, or is left out. Two further runs for each
seed show whether a hybrid learns what data-parallel training learns from the same samples.
"""

from dataclasses import replace

from dlgs_bench import plugins
from dlgs_bench.config import grid
from dlgs_bench.errors import ConfigError
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.topology import FLOAT32_BYTES, TOPOLOGIES, Traffic

BACKBONES, POINTS, TESTED = 2, 15, 100  # of the runs that learn: backbone workers, points of the curve, test samples
SUMS = "halving-doubling"  # of the backbone's gradients, as in the patent
DATA_PARALLEL = {
    "all-reduce": Scheme(
        collective="ring",
        timed_with={"halving-doubling": {"method": "none", "options": {}, "collective": "halving-doubling"}},
    ),
    "server": Scheme(topology="ps-weights"),
}


def runs(values: dict) -> dict[str, RunSpec]:
    if values["network"] != "testbed":
        return {}
    study = values["studies"]["hybrid"]
    timed = {
        name: spec
        for model in study["models"]
        for workers in study["workers"]
        for name, spec in _ways(values, study, model, workers).items()
    }
    return timed | _learning(values, study)


def _ways(values: dict, study: dict, model: str, workers: int) -> dict[str, RunSpec]:
    """The runs of one model. In hybrids half of the workers hold the backbone, each with two workers' samples."""
    batch, heads = study["models"][model], workers // 2
    hybrid = RunSpec(
        "hybrid",
        _training(values, model, heads, batch * workers // (workers - heads)),
        Scheme(options={"heads": heads}, collective=SUMS),
        _cluster(values, study, workers),
        Measurement(repeats=study["repeats"]),
    )
    return {f"hybrid/{model}-{workers}workers": hybrid} | {
        f"timing/hybrid-{model}-{way}-{workers}workers": RunSpec(
            "timing",
            _training(values, model, heads, batch),
            scheme,
            _cluster(values, study, workers, TOPOLOGIES[scheme.topology].servers),
            Measurement(blocks=repeats, repeats=1),
        )
        for way, scheme in DATA_PARALLEL.items()
        if (repeats := _affordable(study, model, workers, scheme))
    }


def _learning(values: dict, study: dict) -> dict[str, RunSpec]:
    """For each seed, a hybrid with ``BACKBONES`` backbone workers and data-parallel training of as many workers."""
    learning = study["learning"]
    model, steps = learning["model"], learning["steps"]
    training = _training(values, model, BACKBONES, learning["batch"], "learning.model")
    training = replace(training, train_steps=steps, lr=learning["lr"])
    points = Measurement(evaluations=min(steps, POINTS), test_samples=TESTED, final_test_samples=TESTED)
    halves = Scheme(options={"heads": BACKBONES}, collective=SUMS)
    cluster = Cluster(study["engine"], 2 * BACKBONES, values["threads"])
    parallel = Cluster(values["engine"], BACKBONES, values["threads"])
    specs = {}
    for seed in values["seeds"]:
        seeded = replace(training, seed=seed)
        specs[f"hybrid/learning-{model}-seed{seed}"] = RunSpec("hybrid", seeded, halves, cluster)
        specs[f"accuracy/hybrid-{model}-seed{seed}"] = RunSpec("accuracy", seeded, Scheme(), parallel, points)
    return specs


def _affordable(study: dict, model: str, workers: int, scheme: Scheme) -> int:
    """The number of iterations that fit into the study's ``limit_s``."""
    gradient = FLOAT32_BYTES * plugins.describe("models", model)["parameters"]
    sent = TOPOLOGIES[scheme.topology].link_bytes(Traffic(gradient), gradient / FLOAT32_BYTES, workers)
    return min(study["repeats"], int(study["limit_s"] / (sent * 8e-6 / study["rate_mbit"])))


def _training(values: dict, model: str, heads: int, batch: int, key: str = "models") -> Training:
    """The training of a model with a head; ConfigError in one line otherwise. ``key``: the study's key of the model."""
    try:
        metadata = plugins.describe("models", model)
    except ValueError as error:
        raise ConfigError(f"studies.hybrid.{key}: {error}") from None
    if not metadata["head"]:
        raise ConfigError(f"studies.hybrid.{key}: {model} does not end in fully connected layers; leave it out")
    if min(metadata["head"]) < heads:
        why = f"{heads} slices, but a layer of {model} has only {min(metadata['head'])} columns"
        raise ConfigError(f"studies.hybrid.workers: {why}; give fewer workers, or leave {model} out")
    stands_in = metadata["data"] == grid.IMAGENET and not values["data"]["imagenet"]
    return Training(model, grid.TIMED_STAND_IN if stands_in else metadata["data"], stands_in, batch=batch)


def _cluster(values: dict, study: dict, workers: int, servers: int = 0) -> Cluster:
    rates = (float(study["rate_mbit"]),) * (workers + servers)
    return Cluster(study["engine"], workers, values["threads"], network="testbed", rates_mbit=rates)
