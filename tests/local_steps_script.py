"""Somebody's script with local steps, for test_local_steps_script; it runs on two ranks or alone."""

import copy
import io

import torch
from torch import nn
from torch.nn import functional as F

STEPS, STOP, EVERY = 14, 7, 3  # STOP is between two exchanges; in streaming, between an exchange and its effect
STREAMING = {"fragments": 2, "delay": 1, "mixing": 0.5}
CASES = {"diloco": ("diloco", {}), "sparseloco": ("sparseloco", {"top": 8}), "streaming": ("diloco", STREAMING)}


def built(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def inner_step(model, optimizer, step: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs, labels = torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs.to(next(model.parameters()).dtype)).float(), labels).backward()
    optimizer.step()


def trained(method: str, rank: int, saved: bytes = b"", seed: int = 0, dtype=torch.float32, **options) -> tuple:
    """The weights after every step, from the start or from what was saved, and what to save after STOP steps."""
    from dlgs_bench.hooks.local_steps import LocalSteps

    model = built(seed).to(dtype)
    optimizer, history = adamw(model), []
    with LocalSteps(model, optimizer, method, local_steps=EVERY, **options) as sync:
        if saved:
            state = torch.load(io.BytesIO(saved), weights_only=True)
            for part, name in ((model, "model"), (optimizer, "optimizer"), (sync, "sync")):
                part.load_state_dict(state[name])
        for step in range(sync.steps, STEPS):
            inner_step(model, optimizer, step, rank)
            sync.step()
            history.append(copy.deepcopy([p.detach() for p in model.parameters()]))
            if sync.steps == STOP:
                memory = io.BytesIO()
                parts = {"model": model, "optimizer": optimizer, "sync": sync}
                torch.save({name: part.state_dict() for name, part in parts.items()}, memory)
                saved = memory.getvalue()
    return history, saved


class Odd(nn.Module):
    """Parameters and buffers of many layouts and dtypes, with other numbers for each seed."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.filters = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.gaps, self.turned = nn.Parameter(torch.randn(6, 4)[:, :1]), nn.Parameter(torch.randn(4, 6).t())
        self.head = nn.Linear(4, 5).requires_grad_(False)
        buffers = {"mask": torch.rand(4, 4) > 0.5, "overlaps": torch.randn(1, 5).expand(3, 5)}
        buffers |= {"waves": torch.randn(3, dtype=torch.complex64), "scale": torch.randn(()).half()}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, images):
        seen = self.filters(images).mean((2, 3))
        return (seen @ self.turned.t() @ self.gaps).mean() + self.head(seen).square().mean()


def odd(rank: int) -> dict:
    """Parameters and buffers at the start, and the error once a layer is unfrozen."""
    from dlgs_bench.hooks.local_steps import LocalSteps

    model = Odd(rank)
    optimizer = adamw(model)
    with LocalSteps(model, optimizer, "diloco", local_steps=2) as sync:
        start = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
        model.head.requires_grad_(True)
        try:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 3, 6, 6)).backward()
                optimizer.step()
                sync.step()
        except ValueError as error:
            return {"start": start, "said": str(error)}
    return {"start": start, "said": ""}


def loaded_too_early(rank: int, stop: int) -> str:
    """The error if a worker loads its weights before LocalSteps is made; ``stop``: the step of the save."""
    from dlgs_bench.hooks.local_steps import LocalSteps

    model = built()
    optimizer = adamw(model)
    with LocalSteps(model, optimizer, "diloco", local_steps=EVERY) as sync:
        for step in range(stop):
            inner_step(model, optimizer, step, rank)
            sync.step()
        state = copy.deepcopy(sync.state_dict())
    if sync.steps % EVERY == 0 and rank:
        model.load_state_dict(built(7).state_dict())  # rank 0 alone has loaded the weights, which suffices then
    with LocalSteps(model, optimizer, "diloco", local_steps=EVERY) as sync:
        sync.load_state_dict(state)
        try:
            inner_step(model, optimizer, stop, rank)
            sync.step()
        except ValueError as error:
            return str(error)
    return ""


def observed(comm) -> dict:
    found: dict = {"odd": odd(comm.rank)}
    for name, (method, options) in CASES.items():
        whole, saved = trained(method, comm.rank, seed=comm.rank, **options)  # rank 0's weights count
        found[name] = whole, trained(method, comm.rank, saved, seed=5 + comm.rank, **options)[0]
    found["loaded too early"] = [loaded_too_early(comm.rank, stop) for stop in (EVERY - 1, EVERY)]
    whole, saved = trained("diloco", comm.rank, seed=comm.rank, dtype=torch.bfloat16)
    found["bf16"] = whole, trained("diloco", comm.rank, saved, seed=5 + comm.rank, dtype=torch.bfloat16)[0]
    return found
