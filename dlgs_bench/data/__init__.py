"""Data sets: each file in this folder is one, and its batches are addressed by step. No torch here.

A batch depends on its step, the seed and the worker alone, so that a run can be resumed from a number.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """One worker's part of the data: ``batch`` samples in each step for each of ``workers``."""

    batch: int
    workers: int
    rank: int
    seed: int


class DataSet(ABC):
    """Training and test samples on a device; one object serves one worker.

    ``title``: the name to show. ``metric``: what tables show next to losses. ``train_size``, ``test_size``: samples.
    ``classes``: targets are 0 .. classes - 1; a model with fewer outputs is then refused before anything runs.
    """

    title: ClassVar[str]
    metric: ClassVar[Literal["accuracy", "perplexity"]] = "accuracy"
    classes: ClassVar[int | None] = None
    train_size: int
    test_size: int

    @abstractmethod
    def __init__(self, root: Path, device: torch.device):
        """``root``: the folder that holds the files of the data set."""

    @abstractmethod
    def batch(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        """Inputs (n, ...) and targets (n, ...) of a training step; steps count from 0 across epochs."""

    @abstractmethod
    def test(self, batch: int, shard: Shard, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of this worker's share of the first ``limit`` test samples, ``batch`` at a time."""

    @staticmethod
    @abstractmethod
    def example() -> Tensor:
        """The inputs of a batch of one, on the default device; only their shape and type count."""

    def steps(self, shard: Shard) -> int:
        """The steps of an epoch."""
        return steps(self.train_size, shard)


def steps(samples: int, shard: Shard) -> int:
    """The steps in which all workers together see every sample once."""
    return -(-samples // (shard.batch * shard.workers))


def training_indices(samples: int, step: int, shard: Shard) -> np.ndarray:
    """Which samples a worker takes in a training step.

    In each epoch the workers' shares are disjoint and cover all samples. Each step takes ``shard.batch`` samples
    of a worker, or one fewer.
    """
    epoch, step = divmod(step, steps(samples, shard))
    fewest, larger = divmod(samples, steps(samples, shard))  # the first ``larger`` steps take one sample more
    start = step * fewest + min(step, larger)
    stop = start + fewest + (step < larger)
    return _order(samples, shard.seed, epoch)[start:stop][shard.rank :: shard.workers]


@lru_cache(maxsize=2)
def _order(samples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(samples)


def evaluation_indices(samples: int, batch: int, shard: Shard, limit: int) -> list[np.ndarray]:
    """A worker's share of the first ``limit`` of ``samples``, in batches."""
    share = np.arange(shard.rank, min(limit, samples), shard.workers)
    return [share[i : i + batch] for i in range(0, len(share), batch)]


def normalise(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Images (n, c, h, w), uint8 -> float32 with mean 0 and deviation 1 if these are each channel's, of 0 .. 1."""
    images = images.float().div_(255)
    mean, deviation = (images.new_tensor(values).view(1, -1, 1, 1) for values in (mean, deviation))
    return images.sub_(mean).div_(deviation)


def names() -> list[str]:
    """The data sets: the files in this folder. What they share lies here or in folders below."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def load(name: str) -> type[DataSet]:
    """The one DataSet in the file ``name``; ValueError in one line if there is none."""
    if name not in names():
        raise ValueError(f"no data set '{name}' in dlgs_bench/data; known: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    found = [
        c for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, DataSet) and c.__module__ == module.__name__
    ]  # fmt: skip
    if len(found) != 1:
        raise ValueError(f"dlgs_bench/data/{name}.py must define one DataSet, found {len(found)}")
    return found[0]
