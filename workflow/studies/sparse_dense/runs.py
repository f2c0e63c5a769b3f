"""Accuracy runs of alternating sparse and dense steps, of the first model that is trained; none without the method.

One run of each T sends as many bytes as the runs of the other T. If ``steps`` is not 0, another run of each T makes
``steps`` steps. Each is made with each of ``lrs``, since a dense step applies the residual of T steps at once.
"""

from dataclasses import replace
from itertools import product

from dlgs_bench import plugins
from dlgs_bench.buckets import num_entries
from dlgs_bench.config import grid, variants
from dlgs_bench.errors import ConfigError
from dlgs_bench.spec import RunSpec

METHOD = "sparse_dense"
NEVER = 10**9  # sparse steps: more than the steps of any run, so that no step is dense
EQUAL_STEPS = "-steps"  # in the names of runs with equal steps instead of equal bytes
ENTRY_BYTES, PAIR_BYTES, COUNT_BYTES = 4, 8, 8  # a dense entry; a value and its index; the count of a message


def runs(values: dict) -> dict[str, RunSpec]:
    if METHOD not in plugins.usable("methods"):
        return {}
    study, model, specs = values["studies"]["sparse_dense"], grid.trained_models(values)[0], {}
    layers = plugins.describe("models", model)["layers"]
    for sparse_steps in [*study["sparse_steps"], NEVER]:
        lengths = {"": affordable(layers, study["ratio"], sparse_steps, study["dense_steps"])}
        lengths |= {EQUAL_STEPS: study["steps"]} if study["steps"] else {}
        if not lengths[""]:
            raise ConfigError(
                f"studies.sparse_dense: the bytes of {study['dense_steps']} dense steps are not enough for one step at "
                f"ratio {study['ratio']:g}; give more dense_steps or a smaller ratio"
            )
        rates = {f"-lr{lr:g}": lr for lr in study["lrs"]} or {"": values["models"][model]["lr"]}
        name = f"accuracy/sparse-dense-{model}-{'never' if sparse_steps == NEVER else sparse_steps}"
        for (length, steps), (rate, lr), seed in product(lengths.items(), rates.items(), values["seeds"]):
            specs[f"{name}{length}{rate}-seed{seed}"] = _run(values, model, sparse_steps, steps, lr, seed)
    return specs


def affordable(layers: list[int], ratio: float, sparse_steps: int, dense_steps: int) -> int:
    """The number of steps that send no more bytes than ``dense_steps`` dense steps.

    T = ``sparse_steps`` sparse steps precede each dense step.
    """
    dense = ENTRY_BYTES * sum(layers)
    sparse = sum(PAIR_BYTES * num_entries(ratio, entries) + COUNT_BYTES for entries in layers)
    cycles, left = divmod(dense * dense_steps, sparse_steps * sparse + dense)
    return cycles * (sparse_steps + 1) + min(sparse_steps, left // sparse)


def _run(values: dict, model: str, sparse_steps: int, steps: int, lr: float, seed: int) -> RunSpec:
    """A run with a constant learning rate. Indices have 32 bits, so that the bytes of a step are known in advance."""
    study = values["studies"]["sparse_dense"]
    points = {key: study[key] for key in ("evaluations", "test_samples", "final_test_samples")}
    recipe = values["models"][model] | {"lr": lr, "lr_steps": [], "warmup_epochs": 0}
    changed = values | {"accuracy": values["accuracy"] | points, "wire": "indices", "models": {model: recipe}}
    variant = variants.variant(METHOD, {"sparse_steps": sparse_steps})
    spec = grid.accuracy_run(changed, model, variant, study["ratio"], seed)
    return replace(spec, training=replace(spec.training, train_steps=steps))
