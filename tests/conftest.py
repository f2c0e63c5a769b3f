"""What several test files share: simulated workers, and copies of the project to change and run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from harness import plugins  # noqa: E402
from harness.exchange.driver import Exchange  # noqa: E402
from harness.exchange.method import Bucket, Sparsifier  # noqa: E402
from harness.training.optimizer import SGD  # noqa: E402
from harness.training.server import Serving  # noqa: E402
from harness.training.clock import Clock  # noqa: E402
from harness.topology import TOPOLOGIES  # noqa: E402

METHODS = plugins.names("methods")
SPARSIFIERS = [m for m in METHODS if issubclass(plugins.load("methods", m), Sparsifier)]


def make(name: str, ratio: float = 0.1):
    method = plugins.load("methods", name)
    return method() if method.exact else method(ratio=ratio)


def sgd(parameters: torch.Tensor) -> SGD:
    return SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2)


def exchange_steps(
    comm, method, steps: list[list[torch.Tensor]], first: int = 1, topology: str = "allgather", wire: str = "indices"
) -> list[list[torch.Tensor]]:
    """Send ``steps`` (a list of per-bucket gradients) through ``method``; return the aggregates.

    With a parameter server, which has zeros as weights at first, the last rank is the server.
    """
    buckets = [Bucket(i, g.clone()) for i, g in enumerate(steps[0])]
    clock = Clock(torch.device("cpu"))
    groups = [(i, i + 1) for i in range(len(buckets))]
    exchange = Exchange(method, groups, buckets, TOPOLOGIES[topology](comm, wire), clock)
    if topology != "allgather" and comm.rank == comm.world_size - 1:
        flat = torch.cat(steps[0])
        exchange = Serving(exchange, flat, sgd(torch.zeros_like(flat)))
    aggregates = []
    for number, gradients in enumerate(steps, start=first):
        for bucket, gradient in zip(buckets, gradients, strict=True):
            bucket.gradient.copy_(gradient)
        clock.start()
        exchange.begin(number)
        for layer in range(len(buckets)):
            exchange.ready(layer)
        exchange.finish()
        aggregates.append([b.gradient.clone() for b in buckets])
    return aggregates


def gradients(rank: int, steps: int, sizes=(7, 300, 1), seed: int = 0) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return [[torch.randn(n, generator=generator) for n in sizes] for _ in range(steps)]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment with this project's Python first on the PATH."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def copy_project(folder: Path) -> Path:
    """A copy of the project without what it produced; the data are shared."""
    ignored = shutil.ignore_patterns(
        ".git", ".venv", ".tools", ".snakemake", "runs", "data", "__pycache__", ".hypothesis", ".pytest_cache",
        "reference", "logs", "smoke", "*.csv",
    )  # fmt: skip
    shutil.copytree(ROOT, folder, ignore=ignored, dirs_exist_ok=True)
    (ROOT / "data").mkdir(exist_ok=True)
    (folder / "data").symlink_to(ROOT / "data")
    return folder


def snakemake(project: Path, environment: dict, *arguments: str, timeout: int = 400) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["snakemake", *arguments], cwd=project, env=environment, capture_output=True, text=True, timeout=timeout
    )
