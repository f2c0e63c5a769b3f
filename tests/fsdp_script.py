"""Somebody's script with FSDP2 on a mesh of two replicas by two shards, for test_fsdp_hook."""

import gc
import io
import warnings
import weakref
from contextlib import suppress
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

STEPS, STOP, LR = 4, 2, 0.1


class Net(nn.Module):
    """Two blocks and two heads, of which a pass uses those in ``heads``."""

    checkpointed = False

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 7)
        self.heads = nn.ModuleList([nn.Linear(7, 3), nn.Linear(7, 3)])
        self.register_buffer("scale", torch.ones(1))

    def forward(self, inputs, heads=(0, 1)):
        first = checkpoint(self.first, inputs, use_reentrant=False) if self.checkpointed else self.first(inputs)
        seen = self.second(first.relu()).relu() * self.scale
        return sum(self.heads[head](seen) for head in heads)


def built(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def loss_of(model, step: int, rank: int, heads=(0, 1)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs, labels = torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)
    return F.cross_entropy(model(inputs, heads).float(), labels)


def sharded(mesh, seed: int = 0, **settings) -> Net:
    net = built(seed)
    for block in (net.first, net.second, net.heads):
        for module in block if isinstance(block, nn.ModuleList) else [block]:
            fully_shard(module, mesh=mesh, **settings)
    return fully_shard(net, mesh=mesh, **settings)


def hooked(mesh, method: str, seed: int = 0, settings: dict | None = None, momentum: float = 0.0, **options):
    from dlgs_bench.hooks.fsdp import FSDPHook

    model = sharded(mesh["shard"], seed, **settings or {})
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    return model, optimizer, FSDPHook(model, mesh["rep"], optimizer, method, **options)


def weights(model) -> list[torch.Tensor]:
    return [p.full_tensor().detach().clone() for p in model.parameters()]


def gradients(model) -> list[torch.Tensor]:
    return [p.grad.full_tensor().detach().clone() for p in model.parameters()]


def trained(model, optimizer, rank: int, steps) -> list[torch.Tensor]:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
    return weights(model)


def resumed(mesh, rank: int, folder: str) -> tuple:
    """Weights of a run that never stopped, and of one that was saved and loaded after STOP steps."""

    def fresh(seed: int):
        return hooked(mesh, "topk", seed, momentum=0.9, ratio=0.1)

    model, optimizer, hook = fresh(0)
    trained(model, optimizer, rank, range(STOP))
    memory = io.BytesIO()
    local = {name: p.to_local() for name, p in model.named_parameters()}
    momenta = [optimizer.state[p]["momentum_buffer"].to_local() for p in model.parameters()]
    torch.save({"model": local, "momenta": momenta}, memory)
    dcp.save({"hook": hook}, checkpoint_id=folder)
    whole = trained(model, optimizer, rank, range(STOP, STEPS))
    state = torch.load(io.BytesIO(memory.getvalue()), weights_only=True)
    model, optimizer, hook = fresh(1)
    trained(model, optimizer, rank, range(1))  # makes the momenta
    for (name, p), momentum in zip(model.named_parameters(), state["momenta"], strict=True):
        p.to_local().detach().copy_(state["model"][name])
        optimizer.state[p]["momentum_buffer"].to_local().copy_(momentum)
    dcp.load({"hook": hook}, checkpoint_id=folder)
    return whole, trained(model, optimizer, rank, range(STOP, STEPS))


def in_turns(mesh, rank: int, method: str, frozen: bool, **options) -> tuple[list, list]:
    """The sum of the applied gradients and the residuals by parameter, with fixed weights and one head per step.

    ``frozen``: before the last step, the other head is used as well, and frozen.
    """
    model, _, hook = hooked(mesh, method, **options)
    applied = [torch.zeros_like(p.to_local()) for p in model.parameters()]
    for step in range(STEPS):
        model.zero_grad()
        both = frozen and step < STEPS - 1
        for number, head in enumerate(model.heads):
            head.requires_grad_(number == step % 2 or not both)
        loss_of(model, step, rank, heads=(0, 1) if frozen else (step % 2,)).backward()
        for total, p in zip(applied, model.parameters(), strict=True):
            if p.grad is not None:
                total += p.grad.to_local()
    left = [torch.zeros_like(total) for total in applied]
    flat = [t for t in left if t.numel()][::-1]
    residual = torch.cat([hook.method.residuals[n] for n in sorted(hook.method.residuals)])
    for t, part in zip(flat, residual.split([t.numel() for t in flat]), strict=True):
        t.copy_(part.view(t.shape))
    for t, p in zip(left, model.parameters(), strict=True):
        dist.all_reduce(t, group=mesh["rep"].get_group())
        t += hook._held.get(p, 0)  # what waits until a pass uses the layer
    return applied, left


def momentum_in_turns(mesh, rank: int, after: bool) -> list[torch.Tensor]:
    """The weights after steps of DGC in which optimizers of two heads take turns.

    ``after``: each optimizer clears its own gradients after its step. Otherwise all are cleared before each pass.
    """
    from dlgs_bench.hooks.fsdp import FSDPHook

    model = sharded(mesh["shard"])
    parts = [[*model.first.parameters(), *model.second.parameters()], *(head.parameters() for head in model.heads)]
    trunk, *heads = (torch.optim.SGD(part, lr=LR) for part in parts)
    _hook = FSDPHook(model, mesh["rep"], [trunk, *heads], "dgc", ratio=0.3)
    for step in range(2 * STEPS):
        head = step % STEPS == STEPS - 1
        if not after:
            model.zero_grad()
        loss_of(model, step, rank, heads=(int(head),)).backward()
        for optimizer in (trunk, heads[head]):
            optimizer.step()
            if after:
                optimizer.zero_grad(set_to_none=step % 2 == 0)
    return weights(model)


def evaluated_first(mesh, rank: int) -> list[torch.Tensor]:
    """The weights after training, where the model was evaluated before the hook was made."""
    from dlgs_bench.hooks.fsdp import FSDPHook

    model = fully_shard(built(), mesh=mesh["shard"])  # FSDP2 keeps the whole parameters of the outermost module
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with torch.no_grad():
        model(torch.ones(2, 6))
    _hook = FSDPHook(model, mesh["rep"], optimizer, "none")
    return trained(model, optimizer, rank, range(STEPS))


def forgotten_state(mesh, rank: int) -> list[str]:
    """What is warned of where an optimizer with momenta goes on with a new hook."""
    from dlgs_bench.hooks.fsdp import FSDPHook

    model, optimizer, hook = hooked(mesh, "topk", momentum=0.9, ratio=0.1)
    trained(model, optimizer, rank, range(1))
    hook.close()
    _hook = FSDPHook(model, mesh["rep"], optimizer, "topk", ratio=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(model, optimizer, rank, range(1))
    return [str(warning.message) for warning in caught if "starts without its state" in str(warning.message)]


def accumulated(mesh, rank: int) -> dict[str, list[torch.Tensor]]:
    found = {}
    model, _, _ = hooked(mesh, "none")
    model.set_requires_gradient_sync(False)
    loss_of(model, 0, rank).backward()
    model.set_requires_gradient_sync(True)
    loss_of(model, 1, rank).backward()
    found["without sync"] = gradients(model)
    model, _, _ = hooked(mesh, "none")
    for step in range(2):
        loss_of(model, step, rank).backward()
    found["two passes"] = gradients(model)
    return found


def dense_entries(step) -> int:
    """How many entries torch's own all-reduce gets while ``step`` runs."""
    counted, original = [], dist.all_reduce

    def all_reduce(tensor, *arguments, **named):
        counted.append(tensor.numel())
        return original(tensor, *arguments, **named)

    dist.all_reduce = all_reduce
    try:
        step()
    finally:
        dist.all_reduce = original
    return sum(counted)


def said(call) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def after_close(mesh, rank: int) -> tuple[list, list]:
    """Weights after a hook was closed between forward and backward, and of a model that never had one."""
    model, optimizer, hook = hooked(mesh, "topk", ratio=0.1)
    loss = loss_of(model, 0, rank)
    hook.close()
    loss.backward()
    optimizer.step()
    plain = sharded(mesh["shard"])
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=LR)
    return trained(model, optimizer, rank, range(1, STEPS)), trained(plain, plain_optimizer, rank, range(STEPS))


def unknown_scaler(mesh, rank: int) -> None:
    """A step under a GradScaler that the hook was not given."""
    model, optimizer, _ = hooked(mesh, "topk", ratio=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, 0, rank)).backward()
    scaler.step(optimizer)


def errors(mesh, rank: int) -> dict[str, str]:
    from dlgs_bench.hooks.fsdp import FSDPHook

    def given(model, replicas):
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        return said(lambda: FSDPHook(model, replicas, optimizer, "topk", ratio=0.1))

    model, _, hook = hooked(mesh, "topk", ratio=0.1)
    model.set_requires_all_reduce(False)
    ((key, (identity, step, kept)),) = hook.state_dict().items()
    state = {key: (identity | {"shard": 1 - identity["shard"]}, step, kept)}
    return {
        "two dimensions": given(sharded(mesh), mesh["rep"]),
        "plain": given(built(), mesh["rep"]),
        "whole mesh": given(sharded(mesh["shard"]), mesh),
        "shards twice": given(sharded(mesh["shard"]), mesh["shard"]),
        "all-reduce off": said(lambda: loss_of(model, 0, rank).backward()),
        "other shard": said(lambda: hook.load_state_dict(state)),
        "unknown scaler": said(lambda: unknown_scaler(mesh, rank)),
    }


def scaled(mesh, rank: int) -> tuple[list, list, bool]:
    """Weights and residuals with a GradScaler, and whether the step in which rank 1 has no finite loss was skipped."""
    from dlgs_bench.hooks.fsdp import FSDPHook

    model = sharded(mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    hook = FSDPHook(model, mesh["rep"], optimizer, "topk", ratio=0.1, scaler=scaler)
    skipped = False
    for step in range(STEPS):
        optimizer.zero_grad()
        before = weights(model)
        loss = loss_of(model, step, rank) * (torch.inf if (step, rank) == (2, 1) else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 2:
            skipped = all(map(torch.equal, before, weights(model)))
    return weights(model), list(hook.method.residuals.values()), skipped


class _Overflow(torch.autograd.Function):
    """The identity; in backward, the first entry of the gradient is infinite where ``overflows``."""

    @staticmethod
    def forward(context, bias, overflows):
        context.overflows = overflows
        return bias.clone()

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        gradient[0] *= torch.inf if context.overflows else 1
        return gradient, None


class Overflowing(nn.Module):
    """A layer whose bias has a gradient with one infinite entry in some passes; the entry is in the first shard."""

    overflows = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 8)

    def forward(self, inputs):
        return F.linear(inputs, self.layer.weight, _Overflow.apply(self.layer.bias, self.overflows))


def one_bad_entry(mesh, rank: int) -> list[tuple[int, bool]]:
    """After every pass, the hook's step and whether the gradients of this rank's shards are finite."""
    from dlgs_bench.hooks.fsdp import FSDPHook

    model = fully_shard(Overflowing(), mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    hook, found = FSDPHook(model, mesh["rep"], optimizer, "topk", ratio=0.2), []
    for step in range(3):
        model.overflows = (step, rank) == (1, 1)
        optimizer.zero_grad()
        model(torch.ones(2, 6)).square().mean().backward()
        found.append((hook.step, all(bool(p.grad.to_local().isfinite().all()) for p in model.parameters())))
    return found


def frozen_later(mesh, rank: int) -> list[bool]:
    """Whether a layer stays as it is in every step; it is frozen after two steps."""
    model, optimizer, _ = hooked(mesh, "topk", ratio=0.3)
    stayed = []
    for step in range(4):
        if step == 2:
            model.second.weight.requires_grad_(False)
        before = model.second.weight.full_tensor().detach().clone()
        trained(model, optimizer, rank, [step])
        stayed.append(torch.equal(before, model.second.weight.full_tensor()))
    return stayed


def inner_gradients(mesh, rank: int) -> list[bool]:
    """Whether torch.autograd.grad leaves the hook's step, its residuals and the delivered gradients alone."""
    model, _, hook = hooked(mesh, "topk", ratio=0.1)
    model.set_reshard_after_backward(False)  # otherwise FSDP2 cannot differentiate twice
    loss_of(model, 0, rank).backward()

    def kept() -> list[torch.Tensor]:
        grads = [p.grad.to_local() for p in hook._shards]  # the model holds whole parameters now
        return [tensor.clone() for tensor in (*grads, *hook.method.residuals.values())]

    before, inputs = kept(), torch.ones(5, 6, requires_grad=True)
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    stayed = [hook.step == 1, *map(torch.equal, before, kept())]
    slope.square().sum().backward()
    return [*stayed, hook.step == 2]


def failed_pass(mesh, rank: int) -> list[bool]:
    """Whether gradients stay as they are in a backward pass that fails before it reaches a layer."""
    model, _, hook = hooked(mesh, "topk", ratio=0.1)
    loss_of(model, 0, rank).backward()
    before = [p.grad.to_local().clone() for p in hook._shards]
    outputs = model(torch.ones(5, 6))
    outputs.register_hook(lambda _: 1 / 0)
    with suppress(ZeroDivisionError):
        outputs.sum().backward()
    return [p.grad is not None and torch.equal(p.grad.to_local(), b) for p, b in zip(hook._shards, before, strict=True)]


def hooks_of_one_model(mesh, rank: int) -> tuple[str, bool]:
    """What is said to a second hook, and whether a hook is gone once the script has deleted it and its model."""
    from dlgs_bench.hooks.fsdp import FSDPHook

    model, optimizer, hook = hooked(mesh, "topk", ratio=0.1)
    second = said(partial(FSDPHook, model, mesh["rep"], optimizer, "none"))
    trained(model, optimizer, rank, range(1))
    gone = weakref.ref(hook)
    del model, optimizer, hook
    gc.collect()
    return second, gone() is None


def documented(code: str, rank: int) -> int:
    """Run the lines of the documentation; return how many passes their hook has exchanged after one."""
    names = {"replicas": 2, "shards": 2, "model": built(), "torch": torch, "init_device_mesh": init_device_mesh}
    exec(code.replace('"cuda"', '"cpu"'), names | {"fully_shard": fully_shard}, names)
    loss_of(names["model"], 0, rank).backward()
    return names["hook"].step


def one_output(mesh, rank: int, late: bool) -> tuple[str, bool]:
    """The error of a hook whose trained layer has no entry on half of the ranks, and whether it has trained.

    ``late``: the other layer is frozen after the hook was made.
    """
    from dlgs_bench.hooks.fsdp import FSDPHook

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1, bias=False))
    model[0].requires_grad_(late)
    for module in (*model, model):
        fully_shard(module, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    try:
        hook = FSDPHook(model, mesh["rep"], optimizer, "topk", ratio=0.5)
    except ValueError as error:
        return str(error), False
    model[0].requires_grad_(False)
    before = weights(model)[2]
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 4), 1.0 + rank)).sum().backward()
        optimizer.step()
    hook.close()
    return "", not torch.equal(before, weights(model)[2])


def observed(comm, code: str, folder: str) -> dict:
    """What one of four ranks observes, which share ``folder``; ``mesh`` puts neighbours into one replica."""
    rank = comm.rank
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rep", "shard"))
    found: dict = {"mistakes": errors(mesh, rank), "accumulated": accumulated(mesh, rank)}
    exact = {"none": {}, "topk": {"ratio": 1.0}, "cltk": {"ratio": 1.0}, "hard_threshold": {"threshold": 0.0}}
    exact |= {"lossless": {}, "powersgd": {"rank": 1_000_000}}
    found["exact"] = {}
    for method, options in exact.items():
        model, optimizer, _ = hooked(mesh, method, **options)
        found["exact"][method] = trained(model, optimizer, rank, range(STEPS))
    model, optimizer, _ = hooked(mesh, "none")
    model.checkpointed = True
    found["exact"]["none with checkpointed activations"] = trained(model, optimizer, rank, range(STEPS))
    # FSDP2's last callback then comes after the hook's.
    cast = MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float64)
    model, optimizer, _ = hooked(mesh, "none", settings={"mp_policy": cast})
    found["exact"]["none with cast outputs"] = trained(model, optimizer, rank, range(STEPS))
    found["exact"]["none after an evaluation"] = evaluated_first(mesh, rank)
    found["forgotten state"] = forgotten_state(mesh, rank)
    for name, settings in {
        "sparse": {},
        "bf16": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)},
    }.items():
        model, optimizer, hook = hooked(mesh, "topk", seed=rank // 2, settings=settings, ratio=0.1)
        start = weights(model)
        found[name] = {
            "start": start,
            "end": trained(model, optimizer, rank, range(STEPS)),
            "residuals": [r.dtype for r in hook.method.residuals.values()],
            "dense": dense_entries(lambda model=model: loss_of(model, 0, rank).backward()),
            "sent": hook._exchange.transport.sent_bytes,
        }
    native = sharded(mesh)  # torch's own hybrid sharding
    found["native dense"] = dense_entries(lambda: loss_of(native, 0, rank).backward())
    found["scaled"] = scaled(mesh, rank)
    found["documented"] = documented(code, rank)
    found["resumed"] = resumed(mesh, rank, folder)
    found["closed"] = after_close(mesh, rank)
    found["one bad entry"] = one_bad_entry(mesh, rank)
    found["frozen later"] = frozen_later(mesh, rank)
    found["inner gradients"] = inner_gradients(mesh, rank)
    found["failed pass"] = failed_pass(mesh, rank)
    found["hooks of one model"] = hooks_of_one_model(mesh, rank)
    found["one output"] = [one_output(mesh, rank, late) for late in (False, True)]
    found["momentum in turns"] = [momentum_in_turns(mesh, rank, after) for after in (False, True)]
    found["in turns"] = {
        (method, frozen): in_turns(mesh, rank, method, frozen, **options)
        for method, options in {"topk": {"ratio": 0.1}, "lags": {"ratio": 0.3}}.items()
        for frozen in (False, True)
    }
    return found
