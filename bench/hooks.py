"""Hooks: the time of an iteration with a hook of this project, compared with a hook of torch or Horovod, in turns.

    python bench/hooks.py results/bench [--quick]

On torch, both sides are DistributedDataParallel: the project's side with ``DDPHook``, the library's side with torch's
hook. On Horovod, both sides are an optimizer: ``HorovodHook`` and Horovod's DistributedOptimizer. Model, batches and
processes are the same, and the environment is the user's. PowerSGD has rank 2 on both sides. torch's PowerSGD starts as
early as torch allows, and does not compress matrices that would not become half as small. It has a single bucket,
because with several buckets it fails with a mismatch on Gloo: the ranks' callbacks run in different orders. Ratio:
project / library, the median over pairs of blocks, with a 95 % bootstrap interval.

Uncompressed DDP is measured with several bucket sizes; ``best`` marks the fastest size of torch. ``many_layers`` has
400 small layers: project_s - library_s is the hook's overhead in a step. FSDP2: ``FSDPHook`` is compared with torch's
own hybrid sharding, which all-reduces. Each of the two replicas has one shard.
"""

import sys
from pathlib import Path

import torch
from arguments import QUICK, parser
from iteration import DEVICE, WORK, batch, connected, in_turns, launch, save_rows
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench import plugins

METHODS = {"none": {}, "cast": {"dtype": "float16"}, "powersgd": {"rank": 2}}
BFLOAT16 = {"dtype": "bfloat16"}
ONE_BUCKET_MB = 4096
BUCKETS_MB = (1, 5, 25, 100)  # 25 is DDP's default
OF_HOROVOD = ("none", "cast")
OF_FSDP = {"none": {}, "topk": {"ratio": 0.01}}
MANY_LAYERS = "many_layers"


def sgd(net, fused: bool = True) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9, weight_decay=1e-4, fused=fused)


def stepping(model, optimizer, data_format=torch.channels_last):
    def step(data):
        images, labels = data
        optimizer.zero_grad()
        F.cross_entropy(model(images.contiguous(memory_format=data_format)), labels).backward()
        optimizer.step()

    return step


def built(name: str) -> nn.Module:
    if name != MANY_LAYERS:
        return plugins.load("models", name).build().to(DEVICE)
    layers = [nn.Linear(16, 16) for _ in range(400)]
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), *layers, nn.Linear(16, 10)).to(DEVICE)


def with_ddp(name: str, project: bool, method: str, options: dict | None = None, bucket_mb: float | None = None):
    net = built(name).to(memory_format=torch.channels_last)
    options = METHODS[method] if options is None else options
    size = ONE_BUCKET_MB if method == "powersgd" and not project else bucket_mb
    model = DistributedDataParallel(net, gradient_as_bucket_view=True, bucket_cap_mb=size)
    optimizer = sgd(net)
    if project:
        from dlgs_bench.hooks.ddp import DDPHook

        DDPHook(model, optimizer, method, **options)
    else:
        register_library_hook(model, method, options)
    return stepping(model, optimizer)


def with_fsdp(name: str, project: bool, method: str, world_size: int):
    """On a contiguous model: FSDP2 refuses channels_last."""
    mesh = init_device_mesh(DEVICE.type, (world_size, 1), mesh_dim_names=("rep", "shard"))
    net, given = built(name), mesh["shard"] if project else mesh
    for block in [child for child in net.children() if any(True for _ in child.parameters())]:
        fully_shard(block, mesh=given)
    fully_shard(net, mesh=given)
    optimizer = sgd(net, fused=False)  # torch has no fused SGD for sharded parameters
    if project:
        from dlgs_bench.hooks.fsdp import FSDPHook

        FSDPHook(net, mesh["rep"], optimizer, method, **OF_FSDP[method])
    return stepping(net, optimizer, torch.contiguous_format)


def register_library_hook(model: DistributedDataParallel, method: str, options: dict) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if method == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, options["rank"], start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        cast = default_hooks.bf16_compress_hook if options == BFLOAT16 else default_hooks.fp16_compress_hook
        model.register_comm_hook(None, {"none": default_hooks.allreduce_hook, "cast": cast}[method])


def with_horovod(name: str, project: bool, method: str):
    """On a contiguous model: Horovod's optimizer refuses channels_last."""
    import horovod.torch as hvd

    net = plugins.load("models", name).build().to(DEVICE)
    optimizer = sgd(net)
    if project:
        from dlgs_bench.hooks.horovod_hook import HorovodHook

        HorovodHook(net, optimizer, method, **METHODS[method])
    else:
        compression = {"none": hvd.Compression.none, "cast": hvd.Compression.fp16}[method]
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), compression)
    return stepping(net, optimizer, torch.contiguous_format)


def more_of_torch(comm, models: tuple[str, ...], blocks: dict) -> list[dict]:
    """Rows of bfloat16, of bucket sizes, of many layers and of FSDP2; ``kind`` names the case."""
    rows: list[dict] = []

    def add(kind: str, model: str, method: str, project, library, bucket_mb: float | None = None) -> None:
        result = in_turns(comm, project, library, batch(comm.rank), **blocks)
        labels = {"kind": kind, "model": model, "method": method, "bucket_mb": bucket_mb, "best": False}
        rows.append(labels | result)

    for model in models:
        add("bfloat16", model, "cast", *(with_ddp(model, project, "cast", BFLOAT16) for project in (True, False)))
        for size in BUCKETS_MB:
            sides = (with_ddp(model, project, "none", bucket_mb=size) for project in (True, False))
            add("bucket size", model, "none", *sides, size)
        min(rows[-len(BUCKETS_MB) :], key=lambda row: row["library_s"])["best"] = True
        for method in OF_FSDP:
            sides = (with_fsdp(model, project, method, comm.world_size) for project in (True, False))
            add("FSDP2", model, method, *sides)
    add("many layers", MANY_LAYERS, "none", *(with_ddp(MANY_LAYERS, project, "none") for project in (True, False)))
    return rows


def work(engine: str, folder: Path, quick: bool) -> None:
    """One of an engine's two processes."""
    comm = connected(engine)
    side, methods = (with_horovod, OF_HOROVOD) if engine == "horovod" else (with_ddp, METHODS)
    rows, blocks = [], {"blocks": 2} if quick else {}
    models = ("resnet20",) if quick else ("resnet20", "vgg16", "resnet50")
    for model in models:
        for method in methods:
            project, library = side(model, True, method), side(model, False, method)
            result = in_turns(comm, project, library, batch(comm.rank), **blocks)
            rows.append({"engine": engine, "model": model, "method": method, **result})
    if engine == "torch_dist":
        save_rows(comm, more_of_torch(comm, models, blocks), folder, "hooks_torch_more")
    save_rows(comm, rows, folder, f"hooks_{engine}")
    comm.close()


if __name__ == "__main__":
    asked = parser(__doc__, WORK | QUICK).parse_args()
    if asked.work:
        work(asked.work, asked.folder, asked.quick)
    else:
        launch(__file__)
