"""Random vectors in 10 classes, for the model ``tiny``."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from dlgs_bench.data import DataSet, Shard, evaluation_indices, training_indices

WIDTH, CLASSES = 16, 10
# Seconds that a batch takes. A test that breaks a run half-way sets it, so that the run lasts on every machine.
PAUSE_S = float(os.environ.get("VECTORS_PAUSE_S", 0))


class Vectors(DataSet):
    """400 training and 200 test vectors (16,). A fixed linear map gives the class. Nothing is downloaded."""

    title = "Vectors"
    classes = CLASSES
    train_size, test_size = 400, 200

    def __init__(self, root: Path, device: torch.device):
        generator = torch.Generator().manual_seed(0)
        linear = torch.randn(WIDTH, CLASSES, generator=generator)
        inputs = torch.randn(self.train_size + self.test_size, WIDTH, generator=generator)
        self._inputs, self._targets = inputs.to(device), (inputs @ linear).argmax(1).to(device)

    def batch(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        time.sleep(PAUSE_S)
        chosen = torch.from_numpy(training_indices(self.train_size, step, shard))
        return self._inputs[chosen], self._targets[chosen]

    def test(self, batch: int, shard: Shard, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in evaluation_indices(self.test_size, batch, shard, limit):
            chosen = torch.from_numpy(self.train_size + indices)
            yield self._inputs[chosen], self._targets[chosen]

    @staticmethod
    def example() -> Tensor:
        return torch.zeros(1, WIDTH)
