"""Synthetic images of ImageNet-100's size for timing runs, whose time does not depend on the pixels."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dlgs_bench.data import DataSet, Shard, evaluation_indices, normalise, training_indices

KEPT = 64  # different images
CLASSES = 100


class Images224(DataSet):
    """Noise, 224x224, with ImageNet-100's numbers of training and test images. After ``KEPT`` images they repeat.

    ``side``: the height and width of an image, in pixels.
    """

    side = 224
    title = "synthetic images, 224x224"
    classes = CLASSES
    train_size, test_size = 130_000, 5_000

    def __init__(self, root: Path, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (KEPT, 3, self.side, self.side), dtype=torch.uint8, generator=generator)
        self._images = images.to(device, memory_format=torch.channels_last)
        self._labels = torch.randint(0, CLASSES, (KEPT,), generator=generator).to(device)

    def batch(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        return self._chosen(training_indices(self.train_size, step, shard))

    def test(self, batch: int, shard: Shard, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self._chosen, evaluation_indices(self.test_size, batch, shard, limit))

    def _chosen(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(indices % KEPT).to(self._images.device)
        return normalise(self._images[chosen], (0.5,) * 3, (0.25,) * 3), self._labels[chosen]

    @classmethod
    def example(cls) -> Tensor:
        return torch.zeros(1, 3, cls.side, cls.side)
