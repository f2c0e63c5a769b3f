"""Training scripts for test_probe, with and without the probe."""

import importlib
import io
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from hook_parts import default_dtype
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.hooks.ddp import DDPHook
from dlgs_bench.hooks.fsdp import FSDPHook
from dlgs_bench.probe import process_group, record
from dlgs_bench.timemodel.job_profile import load


class Interrupted(Exception):
    """The training stops."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.ReLU(), nn.Linear(40, 3))


def hooks_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """How many hooks a model and its optimizer have."""
    found = len(model._forward_hooks) + len(model._forward_pre_hooks)
    found += sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    return found + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def trained(wrap, path: Path | None, rank: int = 0, steps: int = 9, stop: int = 99) -> tuple[list, int]:
    """The weights at the end, and how many hooks the probe has left behind."""
    model, optimizer = wrap(net())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    before = hooks_of(model, optimizer)
    torch.manual_seed(7 + rank)  # dropout draws from the global generator, which the probe must leave alone
    inside = nullcontext() if path is None else record(model, optimizer, path, steps=3, methods=["cast", "topk"])
    try:
        few_sizes = process_group.SIZES[:3]  # the other sizes take seconds
        with mock.patch.object(process_group, "SIZES", few_sizes), inside:
            for step in range(steps):
                if step == stop:
                    raise Interrupted
                optimizer.zero_grad()
                model(torch.randn(5, 6)).square().mean().backward()
                clipped_step(model, optimizer)
                schedule.step()
    except Interrupted:
        pass
    weights = [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in model.parameters()]
    return weights, hooks_of(model, optimizer) - before


def clipped_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Clip the gradients and step. With Horovod, the script has to wait for the sums before it clips."""
    if horovod := hasattr(optimizer, "skip_synchronize"):
        optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize() if horovod else nullcontext():
        optimizer.step()


def plain(model: nn.Module):
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def ddp(model: nn.Module):
    model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters())


def horovod(model: nn.Module):
    engine = importlib.import_module("horovod.torch")
    model, optimizer = plain(model)
    return model, engine.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def with_and_without(comm, engine: str, path: str) -> tuple:
    wrap = {"torch_dist": ddp, "horovod": horovod}[engine]
    return trained(wrap, None, comm.rank), trained(wrap, Path(f"{path}.{comm.rank}"), comm.rank)


def short_of_memory(comm, path: str) -> tuple[int, list[str]]:
    """How many hooks the probe has left behind, and what it reports, if rank 1 has no memory for large tensors."""
    allocate = torch.empty

    def limited(*shape, **options):
        tensor = allocate(*shape, **options)
        if comm.rank == 1 and tensor.dtype == torch.float32 and tensor.nbytes > 4096:
            raise torch.OutOfMemoryError("out of memory")
        return tensor

    with redirect_stderr(io.StringIO()) as reported, mock.patch.object(torch, "empty", limited):
        _, left = trained(ddp, Path(path))
    return left, reported.getvalue().splitlines()


def compiled_outside(comm, path: str) -> int:
    """How many hooks the probe has left behind if torch.compile wraps DistributedDataParallel."""
    _, left = trained(lambda model: plain(torch.compile(DistributedDataParallel(model), backend="eager")), Path(path))
    return left


def ddp_settings(comm) -> tuple[dict, dict]:
    """The settings of two models with batch norm: with buckets of 2 MiB, and with default buckets and no broadcast."""
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    models = DistributedDataParallel(net, bucket_cap_mb=2), DistributedDataParallel(net, broadcast_buffers=False)
    return tuple(map(process_group.ddp_settings, models))


def in_float64(comm, path: str) -> tuple[set[int], list[str]]:
    """The bytes of the tensors with which a job of float64 measures its links, and the measured methods."""
    sizes, call = set(), process_group._slowest

    def noted(comm, operation, tensor, marks):
        sizes.add(tensor.nbytes)
        return call(comm, operation, tensor, marks)

    few_sizes = mock.patch.object(process_group, "SIZES", (4, 2**12))
    with default_dtype(torch.float64), mock.patch.object(process_group, "_slowest", noted), few_sizes:
        model, optimizer = ddp(net())
        with record(model, optimizer, path, steps=2, methods=["cast", "topk"]):
            for _ in range(4):
                step(model, "one backward")
                optimizer.step()
    comm.barrier()  # rank 0 has written the file
    return sizes, sorted(method["name"] for method in load(path)["methods"])


def exchanges_of(comm, path: str) -> list[tuple[int, int]]:
    """The recorded passes and exchanges of a step, in each case of ``step``."""
    found = []
    for case in ("all", "last", "one backward"):
        model, optimizer = ddp(net())
        few_sizes = mock.patch.object(process_group, "SIZES", process_group.SIZES[:2])
        with few_sizes, record(model, optimizer, f"{path}.{case}", steps=2, methods=["cast"]):
            for _ in range(4):
                step(model, case)
                optimizer.step()
        comm.barrier()  # rank 0 has written the file
        job = load(f"{path}.{case}")["job"]
        found.append((job["passes"], job["exchanges"]))
    return found


def step(model: nn.Module, case: str) -> None:
    """The two passes of a step: all exchange gradients, only the last does, or there is one backward pass."""
    model.zero_grad()
    if case == "one backward":
        losses = [model(torch.randn(5, 6)).square().mean() for _ in range(2)]
        sum(losses).backward()
        return
    with model.no_sync() if case == "last" else nullcontext():
        model(torch.randn(5, 6)).square().mean().backward()
    model(torch.randn(5, 6)).square().mean().backward()


def refusal(model: nn.Module, optimizer: torch.optim.Optimizer, path: str) -> str:
    """The line in which ``record`` refuses a job, or "" if it records it."""
    try:
        with record(model, optimizer, path, methods=["cast"]):
            raise Interrupted
    except ValueError as error:
        return str(error)
    except Interrupted:
        return ""


def refusals(comm, engine: str, path: str) -> dict[str, str]:
    """The line for each job that does not exchange gradients once and uncompressed."""
    made: dict[str, Callable] = {"torch_dist": _ddp_refusals, "horovod": _horovod_refusals}
    return made[engine](path)


def _ddp_refusals(path: str) -> dict[str, str]:
    model, optimizer = ddp(net())
    hook = DDPHook(model, optimizer, "topk", ratio=0.1)
    found = {"hook": refusal(model, optimizer, path)}
    hook.close()
    found["closed"] = refusal(model, optimizer, path)
    late, late_optimizer = ddp(net())
    try:
        with record(late, late_optimizer, path, methods=["cast"]):
            hook = DDPHook(late, late_optimizer, "topk", ratio=0.1)
            late(torch.randn(5, 6))
    except ValueError as error:
        found["hook in the context"] = str(error)
    hook.close()
    joined, joined_optimizer = ddp(net())
    try:
        with joined.join(), record(joined, joined_optimizer, path, methods=["cast"]):
            joined(torch.randn(5, 6))
    except ValueError as error:
        found["join"] = str(error)
    model, optimizer = ddp(net())
    model.register_comm_hook(None, bf16_compress_hook)
    found["16 bits"] = refusal(model, optimizer, path)
    found["twice wrapped"] = refusal(*plain(DistributedDataParallel(DistributedDataParallel(net()))), path)
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("rep", "shard"))
    model, optimizer = plain(fully_shard(net(), mesh=mesh["shard"]))
    found["no replicas"] = refusal(model, optimizer, path)
    with FSDPHook(model, mesh["rep"], optimizer, "topk", ratio=0.1):
        found["sharded"] = refusal(model, optimizer, path)
    return found


def hybrid(comm, path: str) -> tuple:
    """``trained`` with and without the probe, on two replicas of two shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rep", "shard"))

    def wrap(model: nn.Module):
        model, optimizer = plain(fully_shard(model, mesh=mesh["shard"]))
        hooks.append(FSDPHook(model, mesh["rep"], optimizer, "none"))
        return model, optimizer

    hooks: list[FSDPHook] = []
    return trained(wrap, None, comm.rank), trained(wrap, Path(f"{path}.{comm.rank}"), comm.rank)


def _horovod_refusals(path: str) -> dict[str, str]:
    engine, hooks = (importlib.import_module(name) for name in ("horovod.torch", "dlgs_bench.hooks.horovod_hook"))
    model, optimizer = plain(net())
    hook = hooks.HorovodHook(model, optimizer, "topk", ratio=0.1)
    found = {"hook": refusal(model, optimizer, path)}
    hook.close()
    found["closed"] = refusal(model, optimizer, path)
    halved = engine.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=engine.Compression.fp16
    )
    found["16 bits"] = refusal(model, halved, path)
    return found
