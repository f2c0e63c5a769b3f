"""Synthetic images of miniImageNet's size for timing runs, whose time does not depend on the pixels."""

from pathlib import Path

import torch

from dlgs_bench.data.images224 import CLASSES, KEPT, Images224


class Images84(Images224):
    """Noise, 84x84, with miniImageNet's numbers of classes and images: 100 classes of 600 images."""

    title = "synthetic images, 84x84"
    train_size, test_size = 50_000, 10_000

    def __init__(self, root: Path, device: torch.device):
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (KEPT, 3, 84, 84), dtype=torch.uint8, generator=generator)
        self._images = images.to(device, memory_format=torch.channels_last)
        self._labels = torch.randint(0, CLASSES, (KEPT,), generator=generator).to(device)

    @staticmethod
    def example() -> torch.Tensor:
        return torch.zeros(1, 3, 84, 84)
