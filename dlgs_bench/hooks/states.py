"""Saved states: what each worker saves, and how a hook continues with the same or another number of workers."""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dlgs_bench.comm import Communicator
from dlgs_bench.comm.torch_dist_engine import TorchDist
from dlgs_bench.exchange import LocalSteps, Method
from dlgs_bench.exchange.plugin import parameters

HELD = "aggregates of unused layers"  # their key in a saved state


def arguments_of(name: str, method: Method) -> dict[str, Any]:
    """The arguments that must be the same on all workers, such as {"method": name, "topk.ratio": 0.1}."""
    return {"method": name} | {f"{name}.{option}": value for option, value in _options(method).items()}


def identity_of(
    name: str, method: Method, comm: Communicator, buckets: list[int], layers: list[tuple[int, ...]]
) -> dict[str, Any]:
    """What a saved state must have in common with the hook that loads it.

    ``buckets``: their entries. ``layers``: the shapes of the parameters, in the order of the buckets.
    """
    worker = {"rank": comm.rank, "workers": comm.world_size}
    return {"method": name, "options": _options(method), **worker, "buckets": buckets, "layers": layers}


def _options(method: Method) -> dict[str, Any]:
    """The parameters of a method with their values."""
    return {f.name: getattr(method, f.name) for f in parameters(type(method))}


def saved_state(
    comm: Communicator, identity: dict[str, Any], step: int, kept: dict[str, Any], held: dict[int, Tensor] | None = None
) -> dict[str, tuple]:
    """{"rank 0": (identity, step, the method's state)}, with the rank of this process among all processes.

    ``kept``: the method's state. ``held``: layer -> its aggregate that waits for a use of the layer. It is the same on
    all workers.

    torch.distributed.checkpoint keeps one copy of equal keys, so that every worker needs a key of its own. It loads a
    tuple whole; of a dictionary it would load only those tensors that a new hook has already.
    Tensors are on the CPU: a file of tensors on cuda:3 cannot be loaded on a machine with fewer GPUs.
    """
    if comm.device.type != "cpu":
        kept = _copied(kept, torch.device("cpu"))
    if held:
        kept = kept | {HELD: held}
    return {_key(comm): (identity, step, kept)}


def loaded_state(
    state: Mapping[str, Any], comm: Communicator, identity: dict[str, Any], method: Method, redistribute: bool
) -> tuple[int, dict[str, Any]]:
    """The step and a copy of the method's state for this worker; ValueError in one line if ``state`` does not fit.

    ``redistribute``: ``state`` has the states of all workers, whose number may have been another one.
    """
    if not isinstance(state, Mapping) or (redistribute and not all(isinstance(one, tuple) for one in state.values())):
        raise ValueError(
            f"state: {type(state).__name__} is not a saved state; if the checkpoint was saved without a hook, do not "
            "load it into one"
        )
    if redistribute and any(saved["workers"] != comm.world_size for saved, _, _ in state.values()):
        return _redistributed(state, comm, identity, method)
    if _key(comm) not in state:
        raise ValueError(
            f"state: {sorted(map(str, state))} is not the state of {_key(comm)}; load what this rank has saved, or "
            "give the states of all ranks and redistribute=True"
        )
    saved, step, kept = state[_key(comm)]
    _refuse_other_state(saved, identity)
    return step, _copied(kept, comm.device)


def _key(comm: Communicator) -> str:
    return f"rank {global_rank(comm)}"


def global_rank(comm: Communicator) -> int:
    """The rank of this process among all processes."""
    return dist.get_rank() if isinstance(comm, TorchDist) else comm.rank


def _redistributed(
    state: Mapping[str, Any], comm: Communicator, identity: dict[str, Any], method: Method
) -> tuple[int, dict[str, Any]]:
    """Every worker gets an equal share of the fields in ``summed_state``, its part of those in ``divided_state``, and a
    copy of those in ``equal_state``.

    Other fields, such as the thresholds of each worker, return to their initial values, and the method computes them
    again. For this, the step goes back to the beginning of the method's cycle. With local steps it does not go back:
    the worker would adopt shared weights a second time, and lose its steps since then.
    """
    fitting = [one for one in state.values() if one[0].get("shard") == identity.get("shard")]
    everyone = sorted(fitting, key=lambda one: one[0]["rank"])
    ranks = [saved["rank"] for saved, _, _ in everyone]
    if not everyone or any(saved["workers"] != len(ranks) for saved, _, _ in everyone) or ranks != [*range(len(ranks))]:
        workers = sorted({saved["workers"] for saved, _, _ in everyone})
        raise ValueError(f"state: ranks {ranks} of {workers} workers are not all ranks; give the states of all workers")
    for saved, _, _ in everyone:
        _refuse_other_state(saved, identity | {"rank": saved["rank"], "workers": saved["workers"]})
    steps = {step for _, step, _ in everyone}
    if len(steps) > 1:
        raise ValueError(f"state: {sorted(steps)} are different steps; give the states of one checkpoint")
    states = [_copied(kept, comm.device) for _, _, kept in everyone]
    shared = type(method)(**identity["options"]).state_dict()
    for name in method.state_fields("equal_state"):
        shared[name] = states[0][name]
    for name in method.state_fields("summed_state"):
        parts = {index: torch.stack([one[name][index] for one in states]) for index in states[0][name]}
        shared[name] = {index: part.sum(0) / comm.world_size for index, part in parts.items()}
    for name in method.state_fields("divided_state"):
        wholes = {index: torch.cat([one[name][index] for one in states]) for index in states[0][name]}
        parts = {index: whole.tensor_split(comm.world_size)[comm.rank] for index, whole in wholes.items()}
        shared[name] = {index: part.clone() for index, part in parts.items()}
    if HELD in states[0]:
        shared[HELD] = states[0][HELD]
    (step,) = steps
    return step if isinstance(method, LocalSteps) else step - step % method.cycle, shared


def _refuse_other_state(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """ValueError in one line if a state is of another method, other parameters, another rank or other buckets."""
    saved = {"layers": here["layers"]} | saved  # older states have no layers
    if saved["method"] != here["method"]:
        raise ValueError(
            f"state: saved by {saved['method']}, here is {here['method']}; load a state of {here['method']}"
        )
    for name in sorted({*saved["options"], *here["options"]}):
        was, now = (of["options"].get(name, "not set") for of in (saved, here))
        if was != now:
            raise ValueError(f"state: saved by {here['method']} with {name}={was}, here it is {now}; give {name}={was}")
    shards = [of.get("shard", "not set") for of in (saved, here)]
    if shards[0] != shards[1]:
        raise ValueError(
            f"state: saved by shard {shards[0]}, here is shard {shards[1]}; load on every rank what it has saved"
        )
    if saved["layers"] != here["layers"]:
        number, was, now = _first_difference(saved["layers"], here["layers"])
        raise ValueError(
            f"state: layer {number}, counted from the output, is {was} in the state and {now} here; load the state of "
            "a model with these layers in this order"
        )
    if saved["buckets"] != here["buckets"]:
        number, was, now = _first_difference(saved["buckets"], here["buckets"])
        raise ValueError(
            f"state: the size of bucket {number} is {was} in the state and {now} here; give the hook the bucket_cap_mb "
            "with which the state was saved, and DistributedDataParallel too"
        )
    if saved["workers"] != here["workers"]:
        raise ValueError(
            f"state: {here['method']} was saved by {saved['workers']} worker(s), here are {here['workers']}; give the "
            "states of all of them and redistribute=True"
        )
    if saved["rank"] != here["rank"]:
        raise ValueError(f"state: saved by rank {saved['rank']}, here is rank {here['rank']}; load what it has saved")


def _first_difference(saved: list, here: list) -> tuple[int, Any, Any]:
    """The position of the first difference of two lists, and the two values there."""
    pairs = zip_longest(saved, here, fillvalue="missing")
    return next((n, was, now) for n, (was, now) in enumerate(pairs) if was != now)


def _copied(value: Any, device: torch.device) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(part, device) for part in value)
    return value.to(device, copy=True) if isinstance(value, Tensor) else value
