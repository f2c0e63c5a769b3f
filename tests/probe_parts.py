"""Training scripts for test_probe, with and without the probe."""

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.probe import process_group, record


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
                optimizer.step()
    except Interrupted:
        pass
    return [p.detach().clone() for p in model.parameters()], hooks_of(model, optimizer) - before


def plain(model: nn.Module):
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def ddp(model: nn.Module):
    return plain(DistributedDataParallel(model))


def horovod(model: nn.Module):
    import importlib

    engine = importlib.import_module("horovod.torch")
    model, optimizer = plain(model)
    return model, engine.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def with_and_without(comm, engine: str, path: str) -> tuple:
    wrap = {"torch_dist": ddp, "horovod": horovod}[engine]
    return trained(wrap, None, comm.rank), trained(wrap, Path(f"{path}.{comm.rank}"), comm.rank)


def compiled_outside(comm, path: str) -> int:
    """How many hooks the probe has left behind if torch.compile wraps DistributedDataParallel."""
    _, left = trained(lambda model: plain(torch.compile(DistributedDataParallel(model), backend="eager")), Path(path))
    return left


def ddp_settings(comm) -> tuple[dict, dict]:
    """The settings of two models with batch norm: with buckets of 2 MiB, and with default buckets and no broadcast."""
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    models = DistributedDataParallel(net, bucket_cap_mb=2), DistributedDataParallel(net, broadcast_buffers=False)
    return tuple(map(process_group.ddp_settings, models))
