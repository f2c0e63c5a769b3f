"""Accuracy runs of alternating sparse and dense steps that send an equal number of bytes; none without the method."""

from dataclasses import replace

from dlgs_bench import plugins
from dlgs_bench.config import grid, variants
from dlgs_bench.spec import RunSpec

METHOD = "sparse_dense"
NEVER = 10**9  # sparse steps: more than the steps of any run, so that no step is dense
ENTRY_BYTES, PAIR_BYTES, COUNT_BYTES = 4, 8, 8  # a dense entry; a value and its index; the count of a message


def runs(values: dict) -> dict[str, RunSpec]:
    if METHOD not in plugins.usable("methods"):
        return {}
    study, model, specs = values["studies"]["sparse_dense"], next(iter(values["models"])), {}
    layers = plugins.describe("models", model)["layers"]
    for sparse_steps in [*study["sparse_steps"], NEVER]:
        steps = affordable(layers, study["ratio"], sparse_steps, study["dense_steps"])
        name = "never" if sparse_steps == NEVER else sparse_steps
        for seed in values["seeds"]:
            run = _run(values, model, sparse_steps, steps, seed)
            specs[f"accuracy/sparse-dense-{model}-{name}-seed{seed}"] = run
    return specs


def affordable(layers: list[int], ratio: float, sparse_steps: int, dense_steps: int) -> int:
    """The number of steps that send no more bytes than ``dense_steps`` dense steps.

    T = ``sparse_steps`` sparse steps precede each dense step.
    """
    dense = ENTRY_BYTES * sum(layers)
    sparse = sum(PAIR_BYTES * max(1, int(ratio * entries + 1e-6)) + COUNT_BYTES for entries in layers)
    cycles, left = divmod(dense * dense_steps, sparse_steps * sparse + dense)
    return cycles * (sparse_steps + 1) + min(sparse_steps, left // sparse)


def _run(values: dict, model: str, sparse_steps: int, steps: int, seed: int) -> RunSpec:
    """A run with a constant learning rate. Indices have 32 bits, so that the bytes of a step are known in advance."""
    study = values["studies"]["sparse_dense"]
    points = {key: study[key] for key in ("evaluations", "test_samples", "final_test_samples")}
    recipe = values["models"][model] | {"lr_steps": [], "warmup_epochs": 0}
    changed = values | {"accuracy": values["accuracy"] | points, "wire": "indices", "models": {model: recipe}}
    variant = variants.variant(METHOD, {"sparse_steps": sparse_steps})
    spec = grid.accuracy_run(changed, model, variant, study["ratio"], seed)
    return replace(spec, training=replace(spec.training, train_steps=steps))
