"""What the ranks of test_hook_wrappers do: train models that torch compiles, checkpoints, joins, groups or watches."""

import torch
import torch.distributed as dist
from hook_parts import hooked, said, sgd
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS, CPU = 4, torch.device("cpu")
WAYS = {
    "torch_dist": (
        *("compiled around", "compiled inside", "compiled step"),
        *("static graph", "unused", "checkpointed", "reentrant"),
    ),
    "horovod": ("compiled around", "compiled step", "checkpointed", "reentrant"),
}


class Blocks(nn.Module):
    """Two blocks, whose activations may be checkpointed, and a head; returns the loss."""

    def __init__(self, reentrant: bool | None = None, whole: bool = False):
        super().__init__()
        torch.manual_seed(4)
        self.blocks, self.head = nn.ModuleList(nn.Linear(6, 6) for _ in range(2)), nn.Linear(6, 2)
        self.reentrant, self.whole = reentrant, whole

    def kept(self, part, inputs: Tensor) -> Tensor:
        return part(inputs) if self.reentrant is None else checkpoint(part, inputs, use_reentrant=self.reentrant)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = self.kept(block, inputs).tanh()
        outputs = self.kept(self.head, inputs) if self.whole else self.head(inputs)
        return (outputs - 1).square().mean()


def made(engine: str, way: str, method: str, options: dict, group=None, whole: bool = False) -> tuple:
    """The plain module, what to call instead, its optimizer and its hook."""
    net = Blocks({"checkpointed": False, "reentrant": True}.get(way), whole)
    optimizer = sgd(net)
    if engine == "horovod":
        model, hook = hooked(engine, net, optimizer, method, **options)
        return net, torch.compile(model, backend="aot_eager") if way == "compiled around" else model, optimizer, hook
    from dlgs_bench.hooks.ddp import DDPHook

    inner = torch.compile(net, backend="aot_eager") if way == "compiled inside" else net
    static, unused = way in ("static graph", "reentrant"), way == "unused"
    model = DistributedDataParallel(inner, static_graph=static, find_unused_parameters=unused, process_group=group)
    if way == "compiled around":
        model = torch.compile(model, backend="aot_eager")
    return net, model, optimizer, DDPHook(model, optimizer, method, **options)


def batch(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, 6, generator=generator).requires_grad_()  # reentrant checkpointing wants it


def step_on(inputs: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(inputs).backward()
    optimizer.step()


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    step_on(batch(step, rank), model, optimizer)


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def trained(comm, engine: str, way: str, method: str, options: dict) -> list[Tensor]:
    net, model, optimizer, _hook = made(engine, way, method, options)
    run = torch.compile(step_on, backend="eager") if way == "compiled step" else step_on
    for step in range(STEPS):
        run(batch(step, comm.rank), model, optimizer)
    return weights(net)


def local_steps_compiled(comm, compiled: bool) -> list[Tensor]:
    """Weights after local steps, in a training step that torch compiles."""
    from dlgs_bench.hooks.local_steps import LocalSteps

    net = Blocks()
    optimizer = sgd(net)
    with LocalSteps(net, optimizer, "diloco", local_steps=2) as sync:

        def whole_step(inputs: Tensor) -> None:
            step_on(inputs, net, optimizer)
            sync.step()

        run = torch.compile(whole_step, backend="eager") if compiled else whole_step
        for step in range(STEPS):
            run(batch(step, comm.rank))
    torch._dynamo.reset()
    return weights(net)


def watched_local_steps(comm, detail: bool) -> list[Tensor]:
    """Weights after local steps. torch checks every collective, as with TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    from dlgs_bench.hooks.local_steps import LocalSteps

    before = dist.get_debug_level()
    if detail:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        net = Blocks()
        optimizer = sgd(net)
        with LocalSteps(net, optimizer, "sparseloco", local_steps=2, group=dist.new_group()) as sync:
            assert isinstance(sync._comm._group._get_backend(CPU), c10d._ProcessGroupWrapper) == detail
            for step in range(STEPS):
                one_step(net, optimizer, step, comm.rank)
                sync.step()
    finally:
        dist.set_debug_level(before)
    return weights(net)


def watched_ddp(comm, detail: bool) -> list[Tensor]:
    """Weights with a hook for a DDP model that was made before its group. torch checks the group's collectives."""
    from dlgs_bench.hooks.ddp import DDPHook

    net, before = Blocks(), dist.get_debug_level()
    model, optimizer = DistributedDataParallel(net), sgd(net)
    if detail:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with DDPHook(model, optimizer, "topk", ratio=0.2):
            for step in range(STEPS):
                one_step(model, optimizer, step, comm.rank)
    finally:
        dist.set_debug_level(before)
    return weights(net)


def compiled_backward(comm, engine: str) -> str:
    """The error of a backward pass that torch compiles."""
    _, model, optimizer, _hook = made(engine, "plain", "topk", {"ratio": 0.2})

    def compiler(graph):
        return torch.compile(graph, backend="eager")

    def step() -> None:
        with torch._dynamo.compiled_autograd._enable(compiler):
            one_step(model, optimizer, 0, comm.rank)

    try:
        return said(step)
    except RuntimeError as error:  # of torch
        return str(error)
    finally:
        torch._dynamo.reset()


def wrapped(comm, engine: str, method: str, options: dict) -> dict[str, list[Tensor]]:
    """The weights after training, by way. "plain" is the ordinary way."""
    found = {way: trained(comm, engine, way, method, options) for way in ("plain", *WAYS[engine])}
    torch._dynamo.reset()
    return found


def reentrant_to_the_end(comm, engine: str) -> str:
    """The error if the last layers, too, are checkpointed with use_reentrant."""
    _, model, optimizer, _hook = made(engine, "reentrant", "topk", {"ratio": 0.2}, whole=True)
    return said(lambda: one_step(model, optimizer, 0, comm.rank))


def reentrant_shared(comm, engine: str) -> str:
    """The error if two checkpointed segments share a block, whose gradient then comes in two parts."""
    net = Blocks(reentrant=True)
    net.blocks[1] = net.blocks[0]
    optimizer = sgd(net)
    model, _hook = hooked(engine, net, optimizer, "topk", ratio=0.2)
    return said(lambda: one_step(model, optimizer, 0, comm.rank))


def joined(comm, method: str | None, options: dict, unused: bool) -> list[Tensor]:
    """The weights of a rank with 3 or 5 batches; without a method, of plain DistributedDataParallel."""
    way = "unused" if unused else "plain"
    if method is None:
        net = Blocks()
        model, optimizer = DistributedDataParallel(net, find_unused_parameters=unused), sgd(net)
    else:
        net, model, optimizer, _hook = made("torch_dist", way, method, options)
    with model.join():
        for step in range(3 + 2 * comm.rank):
            one_step(model, optimizer, step, comm.rank)
    return weights(net)


def joined_with_a_smaller_mean(comm) -> str:
    _, model, optimizer, _hook = made("torch_dist", "plain", "topk", {"ratio": 0.2})

    def train() -> None:
        with model.join(divide_by_initial_world_size=False):
            one_step(model, optimizer, 0, comm.rank)

    return said(train)


def joined_horovod(comm, method: str, options: dict) -> tuple[str, list[Tensor]]:
    """The error of a rank with 1 or 3 batches, which ends in hvd.join, and its weights."""
    import horovod.torch as hvd

    net, model, optimizer, _hook = made("horovod", "plain", method, options)

    def train() -> None:
        for step in range(1 + 2 * comm.rank):
            one_step(model, optimizer, step, comm.rank)
        hvd.join()

    return said(train), weights(net)


def in_groups(comm) -> tuple[list[Tensor], list[Tensor], list[str]]:
    """The weights with a group for each rank alone, the weights of the rank's own training, and the keys of the
    state."""
    groups = [dist.new_group([rank]) for rank in range(comm.world_size)]
    net, model, optimizer, hook = made("torch_dist", "plain", "topk", {"ratio": 1.0}, groups[comm.rank])
    plain = Blocks()
    plain_optimizer = sgd(plain)
    for step in range(STEPS):
        one_step(model, optimizer, step, comm.rank)
        one_step(plain, plain_optimizer, step, comm.rank)
    return weights(net), weights(plain), [*hook.state_dict()]
