"""What the ranks of test_hook_scripts and test_hook_precision do: pieces of people's training scripts."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

LR = 0.1


def hooked(
    engine: str, net: nn.Module, optimizers, method: str, *, unused: bool = False, view: bool = False, **options
) -> tuple:
    """What to call instead of ``net``, and its hook."""
    if engine == "horovod":
        from dlgs_bench.hooks.horovod_hook import HorovodHook

        return net, HorovodHook(net, optimizers, method, **options)
    from dlgs_bench.hooks.ddp import DDPHook

    model = DistributedDataParallel(net, find_unused_parameters=unused, gradient_as_bucket_view=view)
    return model, DDPHook(model, optimizers, method, **options)


def sgd(net: nn.Module, **settings) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), **{"lr": LR} | settings)


def mean_over(comm, tensor: Tensor) -> Tensor:
    """The mean over the ranks, without a hook."""
    return comm.allreduce(tensor.clone().contiguous().view(-1)).view(tensor.shape) / comm.world_size


def said(call) -> str:
    """The one-line error of ``call``."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def state_of(hook) -> dict:
    """The state of the hook's method, as it is saved."""
    ((_identity, _step, state),) = hook.state_dict().values()
    return state


def is_finite(state) -> bool:
    if isinstance(state, dict):
        return all(map(is_finite, state.values()))
    if isinstance(state, list | tuple):
        return all(map(is_finite, state))
    return not isinstance(state, Tensor | float) or bool(torch.as_tensor(state).isfinite().all())


def tensors(state) -> list[Tensor]:
    """All tensors and numbers in a nested state."""
    if isinstance(state, dict):
        return [tensor for key in sorted(state, key=str) for tensor in tensors(state[key])]
    if isinstance(state, list | tuple):
        return [tensor for part in state for tensor in tensors(part)]
    return [state.clone()] if isinstance(state, Tensor) else [torch.as_tensor(float(state))]


class Given(nn.Module):
    """Layers of many kinds. Their gradients are given; a pass uses some of them."""

    SHAPES = {  # noqa: RUF012 - a constant
        "filters": (6, 4, 3, 3), "vector": (20,), "wide": (30, 40), "long": (50, 8),
    }  # fmt: skip

    def __init__(self, dtypes: dict[str, torch.dtype] | None = None):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layers = nn.ParameterDict()
        for name, shape in self.SHAPES.items():
            start = torch.randn(shape, generator=generator, dtype=torch.float32)
            self.layers[name] = nn.Parameter(start.to((dtypes or {}).get(name, torch.float32)))

    def forward(self, gradients: dict[str, Tensor]) -> Tensor:
        return sum(
            (gradients[name].to(self.layers[name].dtype) * self.layers[name]).sum().float() for name in gradients
        )


def drawn(step: int, rank: int, names=tuple(Given.SHAPES)) -> dict[str, Tensor]:
    """The gradients of a step on a rank. A layer's gradient does not depend on the other names."""
    generator = torch.Generator().manual_seed(7000 * step + rank)
    whole = {n: torch.randn(shape, generator=generator, dtype=torch.float32) for n, shape in Given.SHAPES.items()}
    return {name: whole[name] for name in names}


PARTS = (("filters", "vector", "wide"), ("filters", "long"))  # two heads on one trunk
FROZEN = "frozen in turns"
USAGE = {  # which layers a rank uses in a step
    FROZEN: lambda step, rank: PARTS[step % 2] if step < 7 else tuple(Given.SHAPES),
    "in turns": lambda step, rank: PARTS[step % 2],
    "by rank": lambda step, rank: PARTS[(step + rank) % 2],
    "never again": lambda step, rank: PARTS[0] if step > 3 else (*PARTS[0], "long"),
}


def mass(comm, engine: str, method: str, options: dict, usage: str, zeros: bool, view: bool) -> list[tuple]:
    """(what was applied, waits, or is in the ranks' residuals; the true sum) by layer, with fixed weights."""
    net, steps = Given(), 8
    model, hook = hooked(engine, net, sgd(net), method, unused=True, view=view, **options)
    applied = {name: torch.zeros(shape) for name, shape in Given.SHAPES.items()}
    true = {name: torch.zeros(shape) for name, shape in Given.SHAPES.items()}
    for step in range(steps):
        net.zero_grad(set_to_none=not zeros)
        used = USAGE[usage](step, comm.rank)
        if usage == FROZEN:
            for name, layer in net.layers.items():
                layer.requires_grad_(name in used)
        model(drawn(step, comm.rank, tuple(Given.SHAPES) if usage == FROZEN else used)).backward()
        for name, layer in net.layers.items():
            if layer.grad is not None:
                applied[name] += layer.grad
            for rank in range(comm.world_size):
                if name in USAGE[usage](step, rank):
                    true[name] += drawn(step, rank)[name] / comm.world_size
    residuals = state_of(hook)["residuals"]
    kept = comm.allreduce(torch.cat([residuals[index] for index in sorted(residuals)]))
    parts = kept.split([layer.numel() for layer in net.layers.values()][::-1])
    found = []
    for (name, shape), part in zip(reversed(Given.SHAPES.items()), parts, strict=True):
        waits = hook._held.get(net.layers[name], 0)  # until a pass uses the layer
        found.append((name, applied[name] + part.view(shape) + waits, true[name]))
    return found


class Turns(nn.Module):
    """Two layers, of which a pass uses one. Their gradients do not depend on the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)

    def forward(self, inputs: Tensor, layer: str, zeros: bool = False) -> Tensor:
        """``zeros``: give the other layer a gradient of zeros."""
        outputs = self.get_submodule(layer)(inputs)
        return outputs + 0 * self.get_submodule("ab".strip(layer))(inputs) if zeros else outputs


def optimizers_in_turns(comm, engine: str, method: str, options: dict, clears: str, view: bool) -> list[tuple]:
    """(what was applied, waits, or is in the ranks' residuals; the true sum) by layer, which have an optimizer each.

    ``clears``: whose gradients the script clears before a pass.
    """
    net = Turns()
    optimizers = {name: torch.optim.SGD(layer.parameters(), lr=1.0) for name, layer in net.named_children()}
    model, hook = hooked(engine, net, [*optimizers.values()], method, unused=True, view=view, **options)
    before = [p.detach().clone() for p in net.parameters()]  # after DDP has copied the weights of rank 0
    true = {name: torch.zeros(12, 12) for name in optimizers}
    for step in range(16):
        name = "aab"[step % 3]
        (model if clears == "model" else optimizers[name]).zero_grad(set_to_none=step % 2 == 0)
        for rank in range(comm.world_size):
            inputs, factors = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(10 * step + rank))
            true[name] += factors.T @ inputs / comm.world_size
            if rank == comm.rank:
                (model(inputs, name) * factors).sum().backward()
        optimizers[name].step()
    residuals = state_of(hook)["residuals"]
    kept = comm.allreduce(torch.cat([residuals[index] for index in sorted(residuals)])).split(144)[::-1]
    found = []
    for p, start, part, sum_of in zip(net.parameters(), before, kept, true.values(), strict=True):
        found.append((start - p.detach() + part.view(12, 12) + hook._held.get(p, 0), sum_of))
    return found


def momentum_in_turns(
    comm, engine: str, method: str, options: dict, clears: str, view: bool = False, looks: bool = False
) -> list[Tensor]:
    """The weights after each step, where two layers have an optimizer each.

    ``clears``: when the script clears gradients. "zeros": all of them before each pass, in which the other layer has a
    gradient of zeros. ``looks``: the script takes a gradient of the other layer by torch.autograd.grad before the step.
    """
    net, weights = Turns(), []
    optimizers = {name: torch.optim.SGD(layer.parameters(), lr=0.1) for name, layer in net.named_children()}
    model, _ = hooked(engine, net, [*optimizers.values()], method, unused=True, view=view, **options)
    for step in range(16):
        name = "aaab"[step % 4]
        if clears in ("zeros", "all before"):
            model.zero_grad(set_to_none=step % 2 == 0)
        if clears == "before":
            optimizers[name].zero_grad(set_to_none=step % 3 == 0)
        inputs, factors = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(10 * step + comm.rank))
        (model(inputs, name, clears == "zeros") * factors).sum().backward()
        if looks:
            weight = net.get_submodule("ab".strip(name)).weight
            torch.autograd.grad(net(inputs, "ab".strip(name)).sum(), weight)
        optimizers[name].step()
        if clears == "after":
            optimizers[name].zero_grad(set_to_none=step % 3 == 0)
        weights += [p.detach().clone() for p in net.parameters()]
    return weights


def unused_as_without_a_hook(comm, view: bool) -> list[tuple]:
    """The gradients with ``none`` and with plain DDP, by step and layer."""
    plain = DistributedDataParallel(Given(), find_unused_parameters=True, gradient_as_bucket_view=view)
    net = Given()
    model, _ = hooked("torch_dist", net, sgd(net), "none", unused=True, view=view)
    found = []
    for step in range(6):
        for one in (model, plain):
            one.zero_grad(set_to_none=step % 3 != 2)
            one(drawn(step, comm.rank, USAGE["in turns"](step, comm.rank))).backward()
        grads = (layers.layers.values() for layers in (net, plain.module))
        found += [(ours.grad, theirs.grad) for ours, theirs in zip(*grads, strict=True)]
    return [(None if a is None else a.clone(), None if b is None else b.clone()) for a, b in found]


def frozen_later(comm, engine: str, zeros: bool, view: bool) -> list[bool]:
    """Whether a layer that is frozen after step 2 stays as it is, in Top-K with residuals.

    ``zeros``: zero_grad leaves gradients of zeros. ``view``: gradients are views of DDP's buckets.
    """
    net = Given()
    optimizer = sgd(net)
    model, _ = hooked(engine, net, optimizer, "topk", unused=True, view=view, ratio=0.05)
    stayed = []
    for step in range(6):
        if step == 3:
            net.layers["wide"].requires_grad_(False)
        before = net.layers["wide"].detach().clone()
        optimizer.zero_grad(set_to_none=not zeros)
        model(drawn(step, comm.rank)).backward()
        optimizer.step()
        stayed.append(torch.equal(before, net.layers["wide"]))
    return stayed


def bad_step(comm, engine: str, method: str, options: dict, bad: float | None, skips: bool) -> dict:
    """A run with ``bad`` in one layer of rank 1 in step 3, which the script skips or applies; None: without step 3."""
    net = Given()
    optimizer = sgd(net)
    model, hook = hooked(engine, net, optimizer, method, **options)
    found: dict = {"finite": [], "weights": None, "said": None}
    for step in range(1, 7):
        if step == 3 and bad is None:
            continue
        gradients = drawn(step, comm.rank)
        if step == 3 and comm.rank == 1:
            gradients["vector"][5] = bad
        optimizer.zero_grad()
        model(gradients).backward()
        finite = all(layer.grad.isfinite().all() for layer in net.layers.values())
        found["finite"].append(finite)
        if finite or not skips:
            optimizer.step()
    found["weights"] = [p.detach().clone() for p in net.parameters()]
    found["state is finite"] = is_finite(state_of(hook))
    found["state"], found["step"] = tensors(state_of(hook)), hook.step
    return found


def enormous(comm, engine: str, method: str, options: dict) -> list[bool]:
    """Whether the gradients are finite, by pass. float32 holds all gradients, but not the sums of the first pass."""
    net, found = Given(), []
    model, _hook = hooked(engine, net, sgd(net), method, **options)
    for step, factor in enumerate((3e38, 2e36, 5e35, 1.0)):  # a gradient may have entries up to 1e36
        net.zero_grad()
        model({name: g.sign() * factor for name, g in drawn(step, comm.rank).items()}).backward()
        found.append(all(bool(layer.grad.isfinite().all()) for layer in net.layers.values()))
    return found


def scaled(comm, engine: str, method: str, options: dict, scaler: bool, dtype: torch.dtype = torch.float32) -> dict:
    """A run whose loss a GradScaler scales, or the same without; step 5 overflows on rank 1 and is skipped."""
    net = Given(dict.fromkeys(Given.SHAPES, dtype))
    optimizer = sgd(net)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2, enabled=scaler)
    model, hook = hooked(engine, net, optimizer, method, **options, scaler=scale)
    scales = []
    for step in range(1, 9):
        gradients = drawn(step, comm.rank)
        if step == 5 and not scaler:
            continue
        if step == 5 and comm.rank == 1:
            gradients["wide"][3, 3] = float("inf")
        optimizer.zero_grad()
        scale.scale(model(gradients)).backward()
        scale.step(optimizer)
        scale.update()
        scales.append(scale.get_scale())
    weights = [p.detach().clone() for p in net.parameters()]
    return {"weights": weights, "state": tensors(state_of(hook)), "scales": scales}


def tiny(comm, engine: str) -> list[int]:
    """How many entries of gradients of 1e-9 are 0 after ``cast``, whose loss is scaled: given the scaler, and not."""
    zeros = []
    for given in (True, False):
        net = Given()
        scale = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        model, _hook = hooked(engine, net, sgd(net), "cast", scaler=scale if given else None)
        scale.scale(1e-9 * model({name: torch.ones(shape) for name, shape in Given.SHAPES.items()})).backward()
        scale.step(optimizer := sgd(net))
        zeros.append(sum(int((p.grad == 0).sum()) for group in optimizer.param_groups for p in group["params"]))
    return zeros


def unknown_scaler(comm, engine: str, method: str, optimizer: str, enabled: bool = True) -> str:
    """The errors of two steps whose loss is scaled by a GradScaler that the hook does not have."""
    net = Given()
    made = torch.optim.AdamW(net.parameters(), fused=True) if optimizer == "fused" else sgd(net)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=enabled)
    model, _hook = hooked(engine, net, made, method, **({"ratio": 0.1} if method == "topk" else {}))

    def step(number: int) -> None:
        made.zero_grad()
        scale.scale(model(drawn(number, comm.rank))).backward()
        scale.step(made)
        scale.update()

    return said(lambda: [step(number) for number in range(2)])


def sixteen_bits(comm, engine: str, dtypes: dict[str, torch.dtype], method: str, options: dict) -> dict:
    """Gradients of 16-bit parameters: applied and in residuals, and the true sum; by layer."""
    net, steps = Given(dtypes), 10
    model, hook = hooked(engine, net, sgd(net), method, **options)
    applied = {name: torch.zeros(shape) for name, shape in Given.SHAPES.items()}
    true = {name: torch.zeros(shape) for name, shape in Given.SHAPES.items()}
    kinds = set()
    for step in range(steps):
        net.zero_grad()
        model(drawn(step, comm.rank)).backward()
        for name, layer in net.layers.items():
            kinds.add((layer.grad.dtype == layer.dtype, hook._flat.gradients.dtype))
            applied[name] += layer.grad.float()
            for rank in range(comm.world_size):
                true[name] += drawn(step, rank)[name].to(layer.dtype).float() / comm.world_size
    residuals = state_of(hook).get("residuals", {})
    kept = comm.allreduce(torch.cat([residuals[index] for index in sorted(residuals)]))
    parts = kept.split([layer.numel() for layer in net.layers.values()][::-1])
    totals = {}
    for (name, shape), part in zip(reversed(Given.SHAPES.items()), parts, strict=True):
        totals[name] = (applied[name] + part.view(shape), true[name])
    return {"kinds": kinds, "totals": totals, "applied": applied}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SURROUNDINGS = {
    "nothing": nullcontext,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64 by default": lambda: default_dtype(torch.float64),
}


def surrounded(comm, engine: str, method: str, options: dict) -> dict[str, list[Tensor]]:
    """The aggregates of three steps whose backward passes are in different surroundings."""
    found = {}
    for name, surroundings in SURROUNDINGS.items():
        net = Given()
        model, _ = hooked(engine, net, sgd(net), method, **options)
        found[name] = []
        for step in range(3):
            net.zero_grad()
            loss = model(drawn(step, comm.rank))
            with surroundings():
                loss.backward()
            found[name] += [layer.grad.clone() for layer in net.layers.values()]
    return found


def second_way(comm, engine: str, method: str, way: str) -> list[str]:
    """The errors of three steps of a script that adds momentum a second time."""
    net, lines = Given(), []
    optimizer = sgd(net, momentum=0.0)
    model, _ = hooked(engine, net, optimizer, method, **({"ratio": 0.1} if method == "dgc" else {}))
    schedule, others = None, []
    if way == "OneCycleLR":
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    elif way == "CyclicLR":
        schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1)
    elif way == "another SGD":
        others = [sgd(net, momentum=0.9)]
    elif way == "another Adam":
        others = [torch.optim.Adam([net.layers["wide"]])]

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(drawn(number, comm.rank)).backward()
        for one in (*others, optimizer):
            one.step()
        if schedule is not None:
            schedule.step()

    for number in range(3):
        lines.append(said(lambda number=number: step(number)))
        if lines[-1]:
            break
    return lines


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(12, 10), nn.Linear(10, 5)

    def forward(self, inputs):
        return self.second(self.first(inputs).tanh())


def labelled(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(50 + 100 * step + rank)
    return torch.randn(8, 12, generator=generator), torch.randint(0, 5, (8,), generator=generator)


def groups_of(net: Classifier, decay: float) -> list[dict]:
    """Parameter groups in which biases do not decay and the second layer decays twice as much."""
    return [
        {"params": [net.first.weight], "weight_decay": decay},
        {"params": [net.second.weight], "weight_decay": 2 * decay},
        {"params": [net.first.bias, net.second.bias], "weight_decay": 0.0},
    ]


def decayed(
    comm, engine: str, decay: float, steps: int, maximize: bool = False
) -> tuple[list[Tensor], list[Tensor], list]:
    """The weights after some steps of DGC that sends all, and of SGD with momentum on averaged gradients."""
    nets = Classifier(), Classifier()
    sign = -1 if maximize else 1
    ours = torch.optim.SGD(groups_of(nets[0], decay), lr=0.05, momentum=0.0, maximize=maximize)
    plain = torch.optim.SGD(groups_of(nets[1], decay), lr=0.05, momentum=0.9, maximize=maximize)
    model, _ = hooked(engine, nets[0], ours, "dgc", ratio=1.0, masking=False)
    for step in range(steps):
        inputs, labels = labelled(step, comm.rank)
        for one, optimizer in ((model, ours), (nets[1], plain)):
            optimizer.zero_grad()
            (sign * F.cross_entropy(one(inputs), labels)).backward()
        for p in nets[1].parameters():
            p.grad.copy_(mean_over(comm, p.grad))
        ours.step()
        plain.step()
    decays = [group["weight_decay"] for group in ours.param_groups]
    return *([p.detach().clone() for p in net.parameters()] for net in nets), decays


def converted(comm, engine: str, when: str) -> list[Tensor]:
    """The weights of filters after steps of DGC with weight decay; ``when`` the memory format is changed."""
    net = Given()
    if when == "before":
        net.to(memory_format=torch.channels_last)
    optimizer = sgd(net, weight_decay=0.5)
    model, _hook = hooked(engine, net, optimizer, "dgc", ratio=1.0, masking=False)
    if when == "after":
        net.to(memory_format=torch.channels_last)
    for step in range(2):
        optimizer.zero_grad()
        model(drawn(step, comm.rank)).backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]


def two_optimizers(comm, engine: str, given: str) -> tuple[list[Tensor], list[Tensor]]:
    """Weights by Muon for matrices and AdamW for vectors, with a hook and on averaged gradients."""
    nets = Classifier(), Classifier()
    steps = []
    for net in nets:
        muon = torch.optim.Muon([net.first.weight, net.second.weight], lr=0.02)
        steps.append([muon, torch.optim.AdamW([net.first.bias, net.second.bias], lr=0.01)])
    model, _ = hooked(engine, nets[0], {"list": steps[0], "tuple": tuple(steps[0]), "one": steps[0][0]}[given], "none")
    for step in range(5):
        inputs, labels = labelled(step, comm.rank)
        for one, optimizers in zip((model, nets[1]), steps, strict=True):
            for optimizer in optimizers:
                optimizer.zero_grad()
            F.cross_entropy(one(inputs), labels).backward()
        for p in nets[1].parameters():
            p.grad.copy_(mean_over(comm, p.grad))
        for optimizers in steps:
            for optimizer in reversed(optimizers) if step % 2 else optimizers:
                optimizer.step()
    return tuple([p.detach().clone() for p in net.parameters()] for net in nets)


def unknown_parameters(comm, engine: str) -> dict[str, list[str]]:
    """The errors of each of five steps, by what the script does after three steps."""
    found = {}
    habits = ("loss module", "unfrozen", "added group", "new layer", "assigned", "own optimizer", "frozen with zeros")
    for habit in habits:
        net, temperature = Classifier(), nn.Parameter(torch.ones(()))
        net.second.bias.requires_grad_(habit not in ("unfrozen", "frozen with zeros"))
        none = habit != "frozen with zeros"
        net.second.bias.grad = None if none else torch.zeros(5)  # as an earlier stage of the training leaves it
        own = [torch.optim.SGD([temperature], lr=LR)] if habit == "own optimizer" else []
        params = [*net.parameters(), *([temperature] if habit == "loss module" else [])]
        optimizer = torch.optim.SGD(params, lr=LR)
        model, _ = hooked(engine, net, optimizer, "topk", ratio=0.5)
        temperature.requires_grad_(habit in ("loss module", "own optimizer"))
        lines: list[str] = []
        steppers = [optimizer, *own]

        def step(number: int, model=model, optimizers=steppers, net=net, t=temperature, none=none) -> None:
            inputs, labels = labelled(number, comm.rank)
            for one in optimizers:
                one.zero_grad(set_to_none=none)
            outputs = model(inputs)
            if hasattr(net, "added"):
                outputs = outputs + net.added
            F.cross_entropy(outputs * t if t.requires_grad else outputs, labels).backward()
            for one in optimizers:
                one.step()

        for number in range(5):
            if number == 3 and habit == "unfrozen":
                net.second.bias.requires_grad_(True)
            if number == 3 and habit == "added group":
                optimizer.add_param_group({"params": [temperature.requires_grad_()]})
            if number == 3 and habit == "new layer":
                net.added = nn.Parameter(torch.zeros(5))
                optimizer.add_param_group({"params": [net.added]})
            if number == 3 and habit == "assigned":
                net.load_state_dict({name: p.clone() for name, p in net.state_dict().items()}, assign=True)
                steppers[:] = [sgd(net)]
            lines.append(said(lambda number=number: step(number)))
            if lines[-1]:
                break
        found[habit] = lines
    return found


def two_models_one_optimizer(comm, engine: str) -> list[Tensor]:
    """An encoder and a decoder with a hook each, and one optimizer for both."""
    encoder, decoder = Classifier(), nn.Linear(5, 5)
    nn.init.constant_(decoder.weight, 0.1)
    nn.init.zeros_(decoder.bias)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=LR)
    first, _one = hooked(engine, encoder, optimizer, "topk", ratio=0.2)
    second, _two = hooked(engine, decoder, optimizer, "lags", ratio=0.2)
    for step in range(4):
        inputs, labels = labelled(step, comm.rank)
        optimizer.zero_grad()
        F.cross_entropy(second(first(inputs)), labels).backward()
        optimizer.step()
    return [p.detach().clone() for p in (*encoder.parameters(), *decoder.parameters())]


class Odd(nn.Module):
    """Views with gaps and overlaps, no elements, no dimensions, three-dimensional filters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.conv = nn.Conv2d(1, 6, 3)
        self.conv.weight = nn.Parameter(torch.randn(6, 4, 3, 3)[:, :1])
        self.every_other = nn.Parameter(torch.randn(20)[::2])
        self.empty, self.also_empty = nn.Parameter(torch.zeros(0, 16)), nn.Parameter(torch.zeros(3, 0))
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.5))
        self.volume = nn.Conv3d(2, 3, 2).to(memory_format=torch.channels_last_3d)
        self.turned = nn.Parameter(torch.randn(4, 6).t())

    def forward(self, images: Tensor, blocks: Tensor) -> Tensor:
        seen = self.conv(images).tanh().mean((2, 3)) @ self.turned
        vector = (self.every_other * self.scale).sum() + self.empty.sum() + self.also_empty.sum()
        return seen.square().mean() + self.volume(blocks).square().mean() * vector + self.shift.exp()


def odd(comm, engine: str, methods: dict[str, dict]) -> dict[str, list[Tensor]]:
    """The weights after three steps by each method, and without a hook on averaged gradients."""
    found = {}
    for method, options in {"plain": {}, **methods}.items():
        net = Odd()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        model = net if method == "plain" else hooked(engine, net, optimizer, method, **options)[0]
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + comm.rank)
            inputs = torch.randn(2, 1, 8, 8, generator=generator), torch.randn(2, 2, 3, 3, 3, generator=generator)
            optimizer.zero_grad()
            model(*inputs).backward()
            if method == "plain":
                for p in net.parameters():
                    if p.numel():
                        p.grad = mean_over(comm, p.grad)
            optimizer.step()
        found[method] = [p.detach().clone() for p in net.parameters()]
    return found


def closures(comm, engine: str) -> dict:
    """The weights of LBFGS with a hook, and with DDP without a hook; the weights of SGD with a closure."""

    def train(model, optimizer) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            inputs, labels = labelled(0, comm.rank)
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)

    net, plain = Classifier(), Classifier()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    model, _ = hooked(engine, net, optimizer, "none")
    line = said(lambda: train(model, optimizer))
    if engine == "torch_dist":
        train(DistributedDataParallel(plain), torch.optim.LBFGS(plain.parameters(), lr=0.1, max_iter=3))
    return {"said": line, "weights": [[p.detach().clone() for p in one.parameters()] for one in (net, plain)]}


def second_order(comm, engine: str, method: str, options: dict) -> dict:
    """The aggregates of two passes, with and without ``create_graph``, or the error."""
    found: dict = {}
    for graph in (False, True):
        net = Classifier()
        model, _ = hooked(engine, net, sgd(net), method, **options)
        grads = []
        for step in range(2):
            net.zero_grad()
            inputs, labels = labelled(step, comm.rank)
            loss = F.cross_entropy(model(inputs), labels)
            if line := said(lambda loss=loss, graph=graph: loss.backward(create_graph=graph)):
                return found | {"said": line}
            grads += [p.grad.detach().clone() for p in net.parameters()]
            for p in net.parameters():
                p.grad = None
        found["graph" if graph else "plain"] = grads
    return found


def own_gradients(comm, engine: str) -> tuple[list[Tensor], list[Tensor], int]:
    """Weights, with a hook and without, where the script changes, takes and keeps gradients itself; the hook's steps.

    Tensor hooks are registered after the hook was made. Inner gradients come from torch.autograd.grad. The gradients
    of a first pass are kept, and combined with those of a second one.
    """
    nets = Classifier(), Classifier()
    optimizers = [sgd(net) for net in nets]
    model, hook = hooked(engine, nets[0], optimizers[0], "none")
    for net in nets:
        net.second.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for step in range(3):
        for one, net, optimizer in zip((model, nets[1]), nets, optimizers, strict=True):
            kept = []
            for part in range(2):
                optimizer.zero_grad()
                inputs, labels = labelled(step + 10 * part, comm.rank)
                loss = F.cross_entropy(one(inputs), labels)
                torch.autograd.grad(loss, [*net.parameters()], create_graph=True)
                assert all(p.grad is None for p in net.parameters())
                loss.backward()
                kept.append([p.grad for p in net.parameters()])
            for p, first, second in zip(net.parameters(), *kept, strict=True):
                p.grad = first - second / 2
                if net is nets[1]:
                    p.grad = mean_over(comm, p.grad)
            optimizer.step()
    return *([p.detach().clone() for p in net.parameters()] for net in nets), hook.step


class Interruptible(nn.Module):
    """Two heads. If ``fails`` is set, backward fails between a head and the trunk."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.trunk, self.left, self.right = nn.Linear(12, 10), nn.Linear(10, 5), nn.Linear(10, 5)

    def forward(self, inputs: Tensor, head: str, fails: bool) -> Tensor:
        seen = self.trunk(inputs)
        if fails:
            seen.register_hook(lambda gradient: gradient.view(-1, 7))
        return getattr(self, head)(seen)


def refused(comm, engine: str) -> dict[str, str]:
    """The errors of scripts in which gradients would be used without an exchange, or be exchanged twice."""
    found = {}

    def fresh(method: str, net: nn.Module, **options) -> tuple:
        optimizer = sgd(net)
        return optimizer, *hooked(engine, net, optimizer, method, unused=True, **options)

    def backward(model, *how) -> None:
        inputs, labels = labelled(0, comm.rank)
        F.cross_entropy(model(inputs, *how), labels).backward()

    net = Classifier()
    optimizer, model, _one = fresh("topk", net, ratio=0.2)
    net.first.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    found["step in backward"] = said(lambda: backward(model))
    _, model, _two = fresh("dgc", Classifier(), ratio=0.2)
    backward(model)
    found["momentum twice a step"] = said(lambda: backward(model))
    _, model, _three = fresh("topk", Classifier(), ratio=0.2)
    if engine == "horovod":  # DistributedDataParallel needs a process group
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found["wrapped again"] = said(lambda: backward(DistributedDataParallel(model)))
    if engine == "horovod":
        found["wrapped before"] = said(lambda: fresh("topk", DistributedDataParallel(Classifier()), ratio=0.2))
        dist.destroy_process_group()
    found["another model's optimizer"] = said(lambda: hooked(engine, Classifier(), sgd(Classifier()), "none"))
    if engine == "horovod":
        import horovod.torch as hvd

        found["16 bits"] = said(lambda: fresh("cast", Classifier(), dtype="bfloat16"))
        net = Classifier()
        optimizer, model, _four = fresh("topk", net, ratio=0.2)
        wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
        backward(model)
        found["wrapped later"] = said(wrapped.step)
        wrapped.synchronize()
        optimizer, model, _five = fresh("topk", Interruptible(), ratio=0.2)
        for head, fails in (("left", True), ("right", False)):
            with suppress(RuntimeError):
                backward(model, head, fails)
                found["interrupted"] = "exchanged by the gradients of two passes"
        with suppress(RuntimeError):
            optimizer.step()
            found["interrupted"] = "applied without an exchange"
    return found


def warned_of_a_fresh_start(comm) -> list[str]:
    """The warnings of a new script that broadcasts its optimizer's state, as Horovod's examples do."""
    import horovod.torch as hvd

    net = Classifier()
    optimizer = torch.optim.Adam(net.parameters())
    model, _hook = hooked("horovod", net, optimizer, "topk", ratio=0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for step in range(2):
            optimizer.zero_grad()
            inputs, labels = labelled(step, comm.rank)
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return [str(warning.message) for warning in caught]
