"""Data sets: one per file in this folder. No torch here.

A batch depends only on its step, the seed and the worker. So a run can be resumed at any step.
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
    """One worker's share of the data: ``batch`` samples in each step."""

    batch: int
    workers: int
    rank: int
    seed: int


class DataSet(ABC):
    """Training and test samples on a device, for one worker.

    ``title``: the name in tables and figures; of text, with its token, such as "Wikipedia (bytes)". ``metric``: what
    tables show next to losses. ``train_size``, ``test_size``: numbers of samples. ``classes``: targets are from 0 to
    ``classes`` - 1, and a model with fewer outputs is refused before anything runs.
    """

    title: ClassVar[str]
    metric: ClassVar[Literal["accuracy", "perplexity"]] = "accuracy"
    classes: ClassVar[int | None] = None
    train_size: int
    test_size: int

    @abstractmethod
    def __init__(self, root: Path, device: torch.device) -> None:
        """``root``: the folder that holds the files of the data set."""

    @abstractmethod
    def batch(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        """Inputs (n, ...) and targets (n, ...) of a training step. Steps are numbered from 0 across epochs."""

    @abstractmethod
    def test(self, batch: int, shard: Shard, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of this worker's share of the first ``limit`` test samples, in batches of ``batch``."""

    @staticmethod
    @abstractmethod
    def example() -> Tensor:
        """Inputs with the shape and type of a batch of one sample, on the default device."""

    def steps(self, shard: Shard) -> int:
        """The number of steps of an epoch."""
        return steps(self.train_size, shard)


def steps(samples: int, shard: Shard) -> int:
    """The number of steps in which the workers see every sample once."""
    return -(-samples // (shard.batch * shard.workers))


def training_indices(samples: int, step: int, shard: Shard) -> np.ndarray:
    """The indices of the samples of a worker in a training step.

    In each epoch the workers' shares are disjoint and cover all samples. Steps have as equal numbers of samples as
    possible, at most ``shard.batch`` for each worker. The workers of a step differ by at most one sample.
    """
    epoch, step = divmod(step, steps(samples, shard))
    fewest, larger = divmod(samples, steps(samples, shard))  # the first ``larger`` steps have one more sample
    start = step * fewest + min(step, larger)
    stop = start + fewest + (step < larger)
    return _order(samples, shard.seed, epoch)[start:stop][shard.rank :: shard.workers]


def whole_steps(samples: int, shard: Shard) -> int:
    """The number of steps at the beginning of an epoch in which every worker has ``shard.batch`` samples."""
    every, whole = steps(samples, shard), shard.batch * shard.workers
    fewest, larger = divmod(samples, every)
    return every if fewest == whole else larger if fewest + 1 == whole else 0


@lru_cache(maxsize=2)
def _order(samples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(samples)


def evaluation_indices(samples: int, batch: int, shard: Shard, limit: int) -> list[np.ndarray]:
    """The indices of a worker's share of the first ``limit`` of ``samples``, in batches."""
    indices = np.arange(shard.rank, min(limit, samples), shard.workers)
    return [indices[i : i + batch] for i in range(0, len(indices), batch)]


def normalise(images: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Normalise images (n, c, h, w) from uint8 to float32.

    ``mean``, ``deviation``: of each channel, after scaling to values from 0 to 1.
    """
    images = images.float().div_(255)
    centre, scale = (images.new_tensor(values).view(1, -1, 1, 1) for values in (mean, deviation))
    return images.sub_(centre).div_(scale)


def names() -> list[str]:
    """The names of the data sets: the files in this folder. Shared code is in this file or in subfolders."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def load(name: str) -> type[DataSet]:
    """The DataSet class in the file ``name``; ValueError in one line unless the file defines exactly one."""
    if name not in names():
        raise ValueError(f"no data set '{name}' in dlgs_bench/data; known: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    classes = [
        c for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, DataSet) and c.__module__ == module.__name__
    ]  # fmt: skip
    if len(classes) != 1:
        raise ValueError(f"dlgs_bench/data/{name}.py: the file defines {len(classes)} data sets; define exactly one")
    return classes[0]
