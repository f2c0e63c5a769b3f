"""CIFAR-10, kept in memory, with the augmentation of He et al. (2016): crops and flips."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dlgs_bench.data import DataSet, Shard, evaluation_indices, normalise, training_indices

MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)
PAD = 4  # zeros around an image before it is cropped


def augmentation_generator(seed: int, epoch: int, rank: int, device: torch.device) -> torch.Generator:
    """The random number generator of one worker in one epoch."""
    state = np.random.SeedSequence([seed, epoch, rank, 0xA06]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> 1))


def draws(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The offsets of the crops of n images, shape (2, n, 1), from 0 to 2 * PAD, and their flips (0 or 1), (n, 1)."""
    offsets = torch.randint(0, 2 * PAD + 1, (2, n, 1), generator=generator, device=generator.device)
    return offsets, torch.randint(0, 2, (n, 1), generator=generator, device=generator.device)


def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
    """Pad images (n, c, h, w), crop each at its offsets, and flip it if its flip is 1; channels_last."""
    n, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (PAD, PAD, PAD, PAD))
    rows = offsets[0] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    columns = offsets[1] + torch.where(flips == 1, width - 1 - columns, columns)
    image = torch.arange(n, device=device)[:, None, None]
    picked = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)


class Cifar10(DataSet):
    """50,000 and 10,000 images of 32x32 pixels in 10 classes, kept on the device as uint8."""

    title = "CIFAR-10"
    classes = 10
    train_size, test_size = 50_000, 10_000

    def __init__(self, root: Path, device: torch.device) -> None:
        with np.load(root / "cifar10.npz") as arrays:
            self._tensors = {name: torch.from_numpy(arrays[name]).to(device) for name in arrays.files}
        for split in ("train", "test"):
            self._tensors[f"{split}_labels"] = self._tensors[f"{split}_labels"].long()
        self._device = device
        self._generator: torch.Generator | None = None
        self._generator_is_at: tuple[int, Shard] | None = None

    def batch(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(training_indices(self.train_size, step, shard)).to(self._device)
        images = crop_and_flip(self._tensors["train_images"][chosen], *self._draws(step, shard))
        return normalise(images, MEAN, DEVIATION), self._tensors["train_labels"][chosen]

    def _draws(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        """The crops and flips of a step. All steps of an epoch draw from one sequence."""
        epoch, within = divmod(step, self.steps(shard))
        if within == 0 or self._generator_is_at != (step, shard):
            self._generator = augmentation_generator(shard.seed, epoch, shard.rank, self._device)
            for earlier in range(step - within, step):
                draws(len(training_indices(self.train_size, earlier, shard)), self._generator)
        self._generator_is_at = (step + 1, shard)
        return draws(len(training_indices(self.train_size, step, shard)), self._generator)

    def test(self, batch: int, shard: Shard, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in evaluation_indices(self.test_size, batch, shard, limit):
            chosen = torch.from_numpy(indices).to(self._device)
            images = self._tensors["test_images"][chosen].to(memory_format=torch.channels_last)
            yield normalise(images, MEAN, DEVIATION), self._tensors["test_labels"][chosen]

    @staticmethod
    def example() -> Tensor:
        return torch.zeros(1, 3, 32, 32)
