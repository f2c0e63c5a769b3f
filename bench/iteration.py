"""An uncompressed iteration of this project compared with the engines' own libraries, in turns, in the same processes.

    python bench/iteration.py results/bench [--models resnet20 ...]

The libraries run as their users run them: DistributedDataParallel with gradient_as_bucket_view on a channels_last
model, and Horovod's DistributedOptimizer with its defaults on a contiguous model, because it refuses channels_last.
Ratio: project / library, the median over pairs of blocks, with a 95 % bootstrap interval.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import parser
from saving import save

from dlgs_bench import plugins
from dlgs_bench.comm import Communicator, connect
from dlgs_bench.engines import ENGINES
from dlgs_bench.spec import Cluster, RunSpec, Training
from dlgs_bench.training.results import machine
from dlgs_bench.training.session import Session, make_method

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ONE_GPU = DEVICE.type == "cuda" and torch.cuda.device_count() < 2  # which the two processes share
BATCH, BLOCKS, REPEATS = 32, 12, 4
MODELS = ("resnet20", "vgg16", "resnet50")
WORK = {"--work": {"metavar": "engine", "help": argparse.SUPPRESS}}  # marks a process that a launcher started


def batch(seed: int):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator).to(memory_format=torch.channels_last)
    return images.to(DEVICE), torch.randint(0, 10, (BATCH,), generator=generator).to(DEVICE)


class Given:
    """Replaces a data set: always the same batch, for both sides."""

    def batch(self, step, shard):
        return self.data


def project_side(comm, engine: str, model: str):
    cluster = Cluster(engine=engine, workers=comm.world_size, device=DEVICE.type)
    session = Session(RunSpec("timing", Training(model, lr=1e-4), cluster=cluster), comm, Given(), DEVICE)
    exchange, steps = session.prepare("none", make_method("none", {})), itertools.count(1)

    def step(data):
        session.data.data = data
        session.step(exchange, next(steps))

    return step


def peer(engine: str, model: str):
    net = plugins.load("models", model).build().to(DEVICE)
    if engine == "torch_dist":
        net = torch.nn.parallel.DistributedDataParallel(
            net.to(memory_format=torch.channels_last), gradient_as_bucket_view=True
        )
        optimizer = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9, weight_decay=1e-4, fused=True)
    else:
        import horovod.torch as hvd

        optimizer = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9, weight_decay=1e-4, fused=True)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())

    def step(data):
        images, labels = data
        if engine == "horovod":
            images = images.contiguous()
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def now() -> float:
    """The time in seconds, after the GPU has finished its work."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def block_time(comm, step, data) -> float:
    comm.barrier()
    begun = now()
    for _ in range(REPEATS):
        step(data)
    return (now() - begun) / REPEATS


def in_turns(comm, project, library, data, blocks: int = BLOCKS) -> dict:
    """The seconds of both sides and their ratio, project / library, over pairs of blocks; a first pair warms up."""
    pairs = []
    for block in range(blocks + 1):
        # The first side changes from block to block, so that neither gains by its position.
        first, second = (project, library) if block % 2 else (library, project)
        a, b = block_time(comm, first, data), block_time(comm, second, data)
        if block:
            pairs.append((a, b) if block % 2 else (b, a))
    seconds = np.array(pairs)
    ratios = seconds[:, 0] / seconds[:, 1]
    draws = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    medians = np.median(seconds, axis=0)
    return {
        "project_s": medians[0],
        "library_s": medians[1],
        "ratio": np.median(ratios),
        "ratio_low": low,
        "ratio_high": high,
        "blocks": blocks,
        "iterations": blocks * REPEATS,
    }


def save_rows(comm, rows: list[dict], folder: Path, name: str) -> None:
    """Rank 0 saves them."""
    if comm.rank == 0:
        save(rows, folder, name, f"{comm.world_size} workers of one thread over loopback, {machine(DEVICE.type)}.")


def launch(program: str) -> None:
    """Run two processes of this program for every engine in turn, with the engine's launcher and this command line.

    An engine whose processes cannot share a GPU is left out if there is only one.
    """
    for engine in ENGINES.values():
        if ONE_GPU and not engine.shares_gpus:
            print(f"{engine.name}: left out, since it needs a GPU for each of the two processes", file=sys.stderr)
            continue
        if not engine.installed:
            print(f"{engine.name}: left out, since it is not installed", file=sys.stderr)
            continue
        command = engine.command(2, [sys.executable, program, *WORK, engine.name, *sys.argv[1:]])
        subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)


def connected(engine: str) -> Communicator:
    """The communicator of one of an engine's two processes of one thread."""
    torch.set_num_threads(1)
    return connect(engine, DEVICE, shared=ONE_GPU)


def work(engine: str, folder: Path, models: list[str]) -> None:
    """One of an engine's two processes."""
    comm = connected(engine)
    rows = []
    for model in models:
        result = in_turns(comm, project_side(comm, engine, model), peer(engine, model), batch(comm.rank))
        rows.append({"engine": engine, "model": model, **result})
    save_rows(comm, rows, folder, f"iteration_{engine}")
    comm.close()


if __name__ == "__main__":
    models = {"nargs": "+", "choices": MODELS, "default": MODELS, "help": "by default all of them"}
    asked = parser(__doc__, WORK | {"--models": models}).parse_args()
    if asked.work:
        work(asked.work, asked.folder, asked.models)
    else:
        launch(__file__)
