"""What ranks do for test_hook_lifecycle: make hooks, let them go, copy models, wait for a worker that is late."""

import copy
import gc
import os
import tempfile
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from hook_parts import said
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

TIMES, WARM, TIMEOUT_S, LATE_S = 8, 3, 3, 8


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def inputs(step: int, rank: int) -> torch.Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(100 * step + rank))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def hooked(engine: str, method: str = "topk", decay: float = 0.0) -> tuple:
    """(model, optimizer, hook)"""
    model = net() if engine == "horovod" else DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
    return model, optimizer, made(engine, model, optimizer, method, **({} if method == "none" else {"ratio": 0.2}))


def made(engine: str, model: nn.Module, optimizer: torch.optim.Optimizer, method: str, **options):
    if engine == "horovod":
        from dlgs_bench.hooks.horovod_hook import HorovodHook as Made
    else:
        from dlgs_bench.hooks.ddp import DDPHook as Made
    return Made(model, optimizer, method, **options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = 2) -> torch.Tensor:
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs(step, rank)).sum().backward()
        optimizer.step()
    return weights(model)


def counted() -> tuple[int, int]:
    gc.collect()
    time.sleep(0.1)  # a thread that was told to end
    return psutil.Process().num_fds(), threading.active_count()


def kept(comm, engine: str, how: str) -> list[tuple[int, int]]:
    """Descriptors and threads after some hooks, and after more of them; ``how`` they end."""
    found = []
    for number in range(TIMES):
        model, optimizer, hook = hooked(engine)
        train(model, optimizer, comm.rank)
        if how == "close":
            hook.close()
            hook.close()
        elif how == "with":
            with hook:
                train(model, optimizer, comm.rank)
        del model, optimizer, hook
        if number in (WARM, TIMES - 1):
            found.append(counted())
    return found


def after_close(comm, engine: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of steps after ``close``, and of a model that never had a hook."""
    model, optimizer, hook = hooked(engine, "none")
    hook.close()
    plain = net() if engine == "horovod" else DistributedDataParallel(net())
    return train(model, optimizer, comm.rank), train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), comm.rank)


def closed(comm, engine: str) -> str:
    """What the process, with its C++ code, writes to stderr while a hook closes."""
    _, _, hook = hooked(engine)
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            hook.close()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        return file.read().decode()


def another(comm, engine: str) -> tuple[str, torch.Tensor, torch.Tensor]:
    """The error of a second hook; weights of steps with it after the first is closed, and of a model's only hook.

    The first, DGC's, takes the optimizer's weight decay, and gives it back.
    """
    model, optimizer, hook = hooked(engine, "dgc", decay=0.5)
    second = said(lambda: made(engine, model, optimizer, "none"))
    hook.close()
    third = made(engine, model, optimizer, "none")
    found = train(model, optimizer, comm.rank)
    third.close()
    model, optimizer, _hook = hooked(engine, "none", decay=0.5)
    return second, found, train(model, optimizer, comm.rank)


def in_files(comm, engine: str, folder: str) -> tuple[int, bool, str, str]:
    """The step of a new hook that has loaded this rank's file, and whether it has the residuals.

    And what is said to a model with as many entries in other layers, and of a file that is cut off.
    """
    from dlgs_bench.hooks.checkpoints import load_rank_state, save_rank_state

    (model, optimizer, hook), (_, _, other) = hooked(engine), hooked(engine)
    train(model, optimizer, comm.rank)
    save_rank_state(hook, folder)
    load_rank_state(other, folder)
    turned = nn.Sequential(nn.Linear(4, 3), nn.Linear(2, 2))  # 21 entries too
    turned = turned if engine == "horovod" else DistributedDataParallel(turned)
    third = made(engine, turned, torch.optim.SGD(turned.parameters(), lr=0.1), "topk", ratio=0.2)
    layers = said(lambda: load_rank_state(third, folder))
    file = Path(folder) / f"gradient_hook_{comm.rank}.pt"
    file.write_bytes(file.read_bytes()[:100])
    cut = said(lambda: load_rank_state(other, folder))
    return other.step, torch.equal(hook.method.residuals[0], other.method.residuals[0]), layers, cut


def unnamed(comm, engine: str) -> torch.Tensor:
    """The gradient where the script keeps no reference to the hook."""
    model, _, _ = hooked(engine, "none")
    gc.collect()
    model(inputs(0, comm.rank)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def copied(comm, engine: str) -> list[torch.Tensor]:
    """Weights of the model, of its copy and of its average after steps of the model; and of the copy after its own.

    The model holds its hook.
    """
    model, optimizer, hook = hooked(engine)
    (model if engine == "horovod" else model.module).hook = hook
    train(model, optimizer, comm.rank)
    other, average = copy.deepcopy(model), AveragedModel(model)
    before = weights(model)
    average.update_parameters(model)
    trained = train(model, optimizer, comm.rank)
    found = [before, weights(other), weights(average), trained]
    return [*found, train(other, torch.optim.SGD(other.parameters(), lr=0.1), comm.rank)]


def late(comm, method: str) -> float:
    """The seconds until a rank gives up if the group's timeout is TIMEOUT_S and rank 1 comes LATE_S late."""
    from dlgs_bench.hooks.ddp import DDPHook

    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    model = DistributedDataParallel(net(), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DDPHook(model, optimizer, method, **({} if method == "none" else {"ratio": 0.2})):
        began = time.monotonic()
        time.sleep(LATE_S * comm.rank)
        try:
            train(model, optimizer, comm.rank)
        except RuntimeError:
            return time.monotonic() - began
    return -1.0


def mistakes_of_one(comm, engine: str) -> dict[str, str]:
    """The error on each rank if rank 1 makes the hook with other arguments than rank 0."""
    last = comm.rank == 1

    def line(method: str = "topk", momentum: float = 0.0, turned: bool = False, **options) -> str:
        plain = net()
        if turned:  # two layers of equal size, with each other's names
            plain = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("ba" if last else "ab")})
        model = plain if engine == "horovod" else DistributedDataParallel(plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        return said(lambda: made(engine, model, optimizer, method, ratio=0.1, **options))

    return {
        "ratio": line("dgc", clip=2.0 if last else 1.0),
        "method": line("lags" if last else "topk"),
        "buckets": line("dlgs", bucket_cap_mb=3e-5 if last else 8.0),
        "unknown": line("topkk" if last else "topk"),
        "momentum": line("dgc", momentum=0.9 if last else 0.0),
        "scaler": line(scaler=torch.amp.GradScaler("cpu") if last else None),
        "order": line(turned=True),
        "alike": line(),
    }


def wrapped_local_steps(comm) -> dict[str, str]:
    """The error of a forward pass or of LocalSteps if DistributedDataParallel wraps the model, or a part of it."""
    from dlgs_bench.hooks.local_steps import LocalSteps

    groups = [dist.new_group([rank]) for rank in range(comm.world_size)]
    found = {}

    def train(model: nn.Module, outer: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with LocalSteps(model, optimizer, "diloco", local_steps=1) as sync:
            for step in range(2):
                outer(inputs(step, comm.rank)).sum().backward()
                optimizer.step()
                sync.step()

    for case, group in {"": None, ", alone": groups[comm.rank]}.items():
        model = net()
        around = DistributedDataParallel(model, process_group=group)
        found[f"around{case}"] = said(partial(train, model, around))
        model = net()
        model[0] = DistributedDataParallel(model[0], process_group=group)
        found[f"within{case}"] = said(partial(train, model, model))
    return found


def mistaken_local_steps(comm) -> str:
    """The error on each rank if rank 1 makes the local steps of DiLoCo with other arguments than rank 0."""
    from dlgs_bench.hooks.local_steps import LocalSteps

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return said(lambda: LocalSteps(model, optimizer, "diloco", local_steps=3 + comm.rank))
