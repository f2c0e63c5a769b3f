"""Hooks: an iteration with one of our methods in a script of torch's or Horovod's, against their own, in turns.

    python bench/hooks.py results/bench [--quick]

Both sides are DistributedDataParallel, ours with ``DDPHook``, theirs with torch's hook; or an optimizer, ours with
``HorovodHook``, theirs in Horovod's DistributedOptimizer. Same model, batches and processes; all else as their users
find it, the environment too. PowerSGD has rank 2 on either side; torch's begins to compress in the warm-up, as early as
it allows, and leaves alone the matrices that would not halve. It has a single bucket, since on Gloo, where the ranks'
callbacks for several buckets run in orders of their own, it fails with a mismatch. Ratio: ours / theirs, median over
pairs of blocks, with a 95 % bootstrap interval.
"""

import sys
from pathlib import Path

import torch
from iteration import DEVICE, WORK, batch, in_turns, launch, save_rows
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dlgs_bench import comm as engines
from dlgs_bench import plugins

METHODS = {"none": {}, "cast": {"dtype": "float16"}, "powersgd": {"rank": 2}}
ONE_BUCKET_MB = 4096
OF_HOROVOD = ("none", "cast")


def sgd(net) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9, weight_decay=1e-4, fused=True)


def stepping(model, optimizer, data_format=torch.channels_last):
    def step(data):
        images, labels = data
        optimizer.zero_grad()
        F.cross_entropy(model(images.contiguous(memory_format=data_format)), labels).backward()
        optimizer.step()

    return step


def with_ddp(name: str, mine: bool, method: str):
    net = plugins.load("models", name).build().to(DEVICE, memory_format=torch.channels_last)
    one_bucket = {"bucket_cap_mb": ONE_BUCKET_MB} if method == "powersgd" and not mine else {}
    model = DistributedDataParallel(net, gradient_as_bucket_view=True, **one_bucket)
    optimizer = sgd(net)
    if mine:
        from dlgs_bench.hooks.ddp import DDPHook

        DDPHook(model, optimizer, method, **METHODS[method])
    else:
        register_theirs(model, method)
    return stepping(model, optimizer)


def register_theirs(model: DistributedDataParallel, method: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if method == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, METHODS[method]["rank"], start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        hooks = {"none": default_hooks.allreduce_hook, "cast": default_hooks.fp16_compress_hook}
        model.register_comm_hook(None, hooks[method])


def with_horovod(name: str, mine: bool, method: str):
    """On a contiguous model: Horovod's optimizer refuses channels_last."""
    import horovod.torch as hvd

    net = plugins.load("models", name).build().to(DEVICE)
    optimizer = sgd(net)
    if mine:
        from dlgs_bench.hooks.horovod import HorovodHook

        HorovodHook(net, optimizer, method, **METHODS[method])
    else:
        compression = {"none": hvd.Compression.none, "cast": hvd.Compression.fp16}[method]
        optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters(), compression)
    return stepping(net, optimizer, torch.contiguous_format)


def work(engine: str, folder: Path, quick: bool) -> None:
    """One of an engine's two processes."""
    torch.set_num_threads(1)
    comm = engines.connect(engine, DEVICE)
    side, methods = (with_horovod, OF_HOROVOD) if engine == "horovod" else (with_ddp, METHODS)
    rows = []
    for model in ("resnet20",) if quick else ("resnet20", "vgg16", "resnet50"):
        for method in methods:
            mine, theirs = side(model, True, method), side(model, False, method)
            found = in_turns(comm, mine, theirs, batch(comm.rank), **{"blocks": 2} if quick else {})
            rows.append({"engine": engine, "model": model, "method": method, **found})
    save_rows(comm, rows, folder, f"hooks_{engine}")
    comm.close()


if __name__ == "__main__":
    if sys.argv[1] == WORK:
        work(sys.argv[2], Path(sys.argv[3]), "--quick" in sys.argv)
    else:
        launch(lambda engine: {"OMP_NUM_THREADS": "1"}, __file__, *sys.argv[1:])
