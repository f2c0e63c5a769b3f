"""Somebody's training script, for test_hooks: it knows torch, Horovod and dlgs_bench.hooks, nothing else of this
project.

Arguments: the engine, the target file, and {method: parameters} as JSON. Saved is, by method, the aggregate of every
step of a run that never stopped, and of one that was saved and loaded after half of the steps, and the buckets.
"""

import io
import json
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS, STOP, LR = 6, 3, 0.1
CAP_MB = 0.004  # the method's buckets: two or three
DDP_CAP_MB = 0.002  # DDP's, which are others


class Net(nn.Module):
    """A small net with matrices, filters, vectors, and layers larger than a bucket."""

    def __init__(self):
        super().__init__()
        self.filters, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.wide, self.out = nn.Linear(72, 40), nn.Linear(40, 10)

    def forward(self, images):
        seen = F.max_pool2d(self.norm(self.filters(images)).relu(), 10)
        return self.out(self.wide(seen.flatten(1)).relu())


def batch(step: int, rank: int):
    """The batch of step 0, 1, ..., another one for each worker."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 3, 32, 32, generator=generator), torch.randint(0, 10, (4,), generator=generator)


def built() -> Net:
    torch.manual_seed(0)
    return Net().to(memory_format=torch.channels_last)


def flat(net: nn.Module) -> torch.Tensor:
    """The gradients end to end, last layer first, as they lie in memory."""
    return torch.cat([p.grad.as_strided((p.numel(),), (1,), p.grad.storage_offset()) for p in net.parameters()][::-1])


def hooked(engine: str, net: nn.Module, method: str, options: dict, view: bool):
    """What to call instead of ``net``, its optimizer and its hook."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    if engine == "horovod":
        from dlgs_bench.hooks.horovod_hook import HorovodHook

        return net, optimizer, HorovodHook(net, optimizer, method, bucket_cap_mb=CAP_MB, **options)
    from dlgs_bench.hooks.ddp import DDPHook

    model = DistributedDataParallel(net, bucket_cap_mb=DDP_CAP_MB, gradient_as_bucket_view=view)
    return model, optimizer, DDPHook(model, optimizer, method, bucket_cap_mb=CAP_MB, **options)


def train(engine: str, rank: int, method: str, options: dict, view: bool, saved: bytes = b""):
    """The aggregates of all steps from the start or from what was saved, and what to save after STOP steps."""
    net = built()
    model, optimizer, hook = hooked(engine, net, method, options, view)
    if saved:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        net.load_state_dict(state["model"])
        hook.load_state_dict(state["hook"])
    aggregates = []
    for step in range(hook.step, STEPS):
        optimizer.zero_grad()
        images, labels = batch(step, rank)
        F.cross_entropy(model(images), labels).backward()
        if engine == "horovod":
            hook.synchronize()
        aggregates.append(flat(net).clone())
        optimizer.step()
        if hook.step == STOP:
            memory = io.BytesIO()
            torch.save({"model": net.state_dict(), "hook": hook.state_dict()}, memory)
            saved = memory.getvalue()
    return aggregates, saved


def spoken_between(rank: int) -> list[torch.Tensor]:
    """The aggregates if backward itself communicates in DDP's group, as SyncBatchNorm does, before or after the
    hook."""
    net = built()
    model, _, _ = hooked("torch_dist", net, "none", {}, False)

    def speak(gradient: torch.Tensor) -> None:
        time.sleep(0.05 * rank)
        said = torch.ones(1000)
        dist.all_reduce(said)
        assert (said == dist.get_world_size()).all()

    net.norm.register_forward_hook(lambda module, inputs, output: output.register_hook(speak) and None)
    aggregates = []
    for step in range(STEPS):
        net.zero_grad()
        images, labels = batch(step, rank)
        F.cross_entropy(model(images), labels).backward()
        aggregates.append(flat(net).clone())
    return aggregates


class Given(nn.Module):
    """A model whose gradients are given."""

    def __init__(self):
        super().__init__()
        shapes = {"wide": (30, 50), "vector": (40,), "long": (64, 20), "filters": (16, 4, 3, 3)}
        self.layers = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})

    def forward(self, gradients: dict[str, torch.Tensor]):
        return sum((gradients[name] * layer).sum() for name, layer in self.layers.items())


def given(step: int, rank: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7000 * step + rank)
    return {name: torch.randn(layer.shape, generator=generator) for name, layer in Given().layers.items()}


def power(rank: int, rank_of_matrices: int) -> list[list[torch.Tensor]]:
    """The aggregates of torch's PowerSGD hook and of the project's hook, from the same first Q.

    torch sums without compression in the two steps before; the order of its matrices is that of its bucket then.
    """
    from dlgs_bench.hooks.ddp import DDPHook

    state = theirs.PowerSGDState(None, rank_of_matrices, start_powerSGD_iter=2, min_compression_rate=1e-9)
    orders = []

    def watched(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        orders.append([p.shape for p in bucket.parameters()])
        return theirs.powerSGD_hook(state, bucket)

    model, ours = (DistributedDataParallel(Given()) for _ in range(2))
    model.register_comm_hook(state, watched)
    hook = DDPHook(ours, torch.optim.SGD(ours.parameters(), lr=LR), "powersgd", rank=rank_of_matrices)
    found: list[list[torch.Tensor]] = [[], []]
    for step in range(2 + STEPS):
        if step == 2:
            hook.method.factors = {0: first_factors(orders[-1], rank_of_matrices)}
        for net, aggregates in zip((model, ours)[: 1 + (step > 1)], found, strict=False):
            net.zero_grad()
            net(given(step, rank)).backward()
            aggregates.append(flat(net.module).clone())
    return [found[0][2:], found[1]]


def first_factors(order: list[torch.Size], rank_of_matrices: int) -> list[torch.Tensor]:
    """What torch's hook draws for its matrices in this order, vectors included, in the order of ours, last first."""
    torch.manual_seed(np.random.RandomState(0).randint(1_000_000_000))
    drawn = {}
    for shape in order:
        rows, columns = shape[0], shape[1:].numel()
        drawn[shape] = torch.randn(1, columns, min(rows, columns, rank_of_matrices))[0]
    return [drawn[layer.shape] for layer in [*Given().parameters()][::-1] if layer.dim() > 1]


def horovods_mistakes() -> list[str]:
    """The errors if an exchange would come too late, from two sides, or not at all."""
    import horovod.torch as hvd

    said = []

    def tried(call) -> None:
        try:
            call()
        except (RuntimeError, ValueError) as error:
            said.append(str(error))

    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].requires_grad_(False)
    model, optimizer, _ = hooked("horovod", net, "none", {}, False)
    tried(lambda: optimizer.step(lambda: None))
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=LR))
    tried(lambda: hooked_by(wrapped, net))
    net[1].requires_grad_(True)  # unfrozen after the hook was made
    model(torch.ones(1, 2)).sum().backward()
    tried(optimizer.step)
    return said


class Branches(nn.Module):
    """Two layers of which a pass uses one, or both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, inputs, *names):
        return sum(getattr(self, name)(inputs).sum() for name in names)


def inputs_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(100 * step + rank))


def grads(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in net.parameters()]


def horovods_habits(rank: int) -> dict[str, list[torch.Tensor]]:
    """What scripts do between backward and step, and with layers that a pass leaves out; gradients or weights."""
    found = {}

    def fresh() -> tuple:
        return hooked("horovod", Branches(), "none", {}, False)

    net, optimizer, _ = fresh()
    for step in (0, 1):  # accumulated over two passes
        net(inputs_of(step, rank), "left", "right").backward()
    found["accumulated"] = grads(net)
    optimizer.zero_grad(set_to_none=False)
    net(inputs_of(2, rank), "left", "right").backward()
    found["after zeros"] = grads(net)
    optimizer.zero_grad()  # a step that is left out
    net(inputs_of(3, rank), "left", "right").backward()
    found["after a skipped step"] = grads(net)
    net, optimizer, _ = fresh()
    net(inputs_of(0, rank), "left" if rank == 0 else "right").backward()  # each rank another branch
    found["by rank"] = grads(net)
    optimizer.zero_grad()
    net(inputs_of(1, rank), "left").backward()  # a branch that no rank uses
    found["unused"] = grads(net)
    net, optimizer, _ = hooked("horovod", Branches(), "topk", {"ratio": 0.5}, False)
    (1e4 * net(inputs_of(0, rank), "left", "right")).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    found["clipped"] = grads(net)
    other, (first, second) = Branches(), (fresh(), fresh())  # a GAN's two models, each with a hook
    for step in range(2):
        for model, optimizer, _ in (first, second):
            optimizer.zero_grad()
            model(inputs_of(step, rank) + other.left.weight.detach(), "left", "right").backward()
            optimizer.step()
    found["two hooks"] = [p.detach().clone() for model in (first[0], second[0]) for p in model.parameters()]
    return found


def hooked_by(optimizer, net) -> None:
    from dlgs_bench.hooks.horovod_hook import HorovodHook

    HorovodHook(net, optimizer, "none")


def observed(engine: str, rank: int, methods: dict[str, dict]) -> dict:
    """The aggregates of a run without a stop, the aggregates after loading, and the buckets, by method; and what only
    this engine observes."""
    found: dict = {}
    if engine == "horovod":
        found |= {"said": horovods_mistakes(), "habits": horovods_habits(rank)}
    else:
        dist.new_group([1])  # as a script may for another purpose, so that ranks are in different numbers of groups
        found |= {"power": {r: power(rank, r) for r in (2, 4)}, "spoken between": spoken_between(rank)}
    for number, (method, options) in enumerate(methods.items()):
        whole, saved = train(engine, rank, method, options, view=bool(number % 2))
        buckets = torch.load(io.BytesIO(saved), weights_only=True)["hook"][f"rank {rank}"][0]["buckets"]
        found[method] = whole, train(engine, rank, method, options, False, saved)[0], buckets
    return found


def in_world(comm, engine: str, methods: dict[str, dict]) -> dict:
    """What ``observed`` returns, in a rank that the tests have started."""
    return observed(engine, comm.rank, methods)


def main(engine: str, target: str, methods: str) -> None:
    torch.set_num_threads(1)
    if engine == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
    else:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    found = observed(engine, rank, json.loads(methods))
    import dlgs_bench

    found |= {"dlgs_bench": dlgs_bench.__file__, "horovod": "horovod" in sys.modules}
    torch.save(found, f"{target}.{rank}")


if __name__ == "__main__":
    main(*sys.argv[1:])
