"""Images: CIFAR-10 in memory as uint8, ImageNet-100 from folders; sharding; augmentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.data.imagenet100 import class_ids

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def batches(images: int, batch: int, workers: int, rank: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The indices of one worker's batches of one epoch.

    Over the workers the shards of an epoch are disjoint and cover all images; every worker has the
    same number of batches, and each holds ``batch`` images or one fewer.
    """
    order = np.random.default_rng([seed, epoch]).permutation(images)
    steps = -(-images // (batch * workers))
    return [part[rank::workers] for part in np.array_split(order, steps)]


def augmentation_generator(seed: int, epoch: int, rank: int, device: torch.device) -> torch.Generator:
    """Random numbers that differ by worker and epoch."""
    state = np.random.SeedSequence([seed, epoch, rank, 0xA06]).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(state >> 1))


def crop_and_flip(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Random crop after zero padding, and random flip, of a whole uint8 batch at once.

    ``images``: (n, c, h, w); each image has its own offset in 0 .. 2 * pad and its own coin.
    """
    n, _, height, width = images.shape
    device = images.device
    padded = torch.nn.functional.pad(images, (pad, pad, pad, pad))
    draw = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator, device=device)
    flip = torch.randint(0, 2, (n, 1), generator=generator, device=device)
    rows = draw[0] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device)
    columns = draw[1] + torch.where(flip == 1, width - 1 - columns, columns)
    picked = padded.permute(0, 2, 3, 1)[
        torch.arange(n, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]
    ]
    return picked.permute(0, 3, 1, 2)  # channels_last in memory, as the models want it


@dataclass
class Normalise:
    """uint8 (n, 3, h, w) -> float32 with mean 0 and deviation 1 per channel, on the input's device."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        shape = (1, 3, 1, 1)
        mean = torch.tensor(self.mean, device=images.device).view(shape)
        std = torch.tensor(self.std, device=images.device).view(shape)
        return images.float().div_(255).sub_(mean).div_(std)


class Cifar10:
    """All of CIFAR-10 on ``device`` as uint8; crop and flip are batched tensor operations."""

    train_size, test_size = 50_000, 10_000

    def __init__(self, root: Path, device: torch.device):
        with np.load(root / "cifar10.npz") as arrays:
            self._tensors = {k: torch.from_numpy(arrays[k]).to(device) for k in arrays.files}
        for split in ("train", "test"):
            self._tensors[f"{split}_labels"] = self._tensors[f"{split}_labels"].long()
        self._device = device
        self._normalise = Normalise(CIFAR_MEAN, CIFAR_STD)

    def train(self, batch: int, workers: int, rank: int, seed: int, epoch: int) -> Iterator:
        """Yield this worker's (images, labels) of one epoch, augmented."""
        generator = augmentation_generator(seed, epoch, rank, self._device)
        for indices in batches(self.train_size, batch, workers, rank, seed, epoch):
            chosen = torch.from_numpy(indices).to(self._device)
            images = crop_and_flip(self._tensors["train_images"][chosen], generator)
            yield self._normalise(images), self._tensors["train_labels"][chosen]

    def test(self, batch: int, workers: int, rank: int, limit: int) -> Iterator:
        """Yield this worker's share of the first ``limit`` test images."""
        shard = torch.arange(rank, min(limit, self.test_size), workers, device=self._device)
        for chosen in shard.split(batch):
            images = self._tensors["test_images"][chosen].to(memory_format=torch.channels_last)
            yield self._normalise(images), self._tensors["test_labels"][chosen]


class ImageNet100:
    """Folders ``train/<class id>/*`` and ``val/<class id>/*`` of the classes in ``models/imagenet100.txt``.

    224x224: random resized crop and flip for training, resize to 256 and centre crop for tests;
    decoded by loader processes, each worker reading its shard only.
    """

    LOADERS = 4

    def __init__(self, root: Path, device: torch.device):
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        classes = class_ids()

        class Folder(ImageFolder):
            def find_classes(self, directory):
                return classes, {c: i for i, c in enumerate(classes)}

        resized = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        centred = [transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()]
        self._train = Folder(root / "train", transforms.Compose(resized))
        self._test = Folder(root / "val", transforms.Compose(centred))
        self.train_size, self.test_size = len(self._train), len(self._test)
        self._device = device
        self._normalise = Normalise(IMAGENET_MEAN, IMAGENET_STD)

    def _load(self, dataset, index_batches, generator=None) -> Iterator:
        loader = torch.utils.data.DataLoader(
            dataset,
            batch_sampler=[list(map(int, b)) for b in index_batches],
            num_workers=self.LOADERS,
            pin_memory=self._device.type == "cuda",
            generator=generator,
        )
        for images, labels in loader:
            images = images.to(self._device, non_blocking=True, memory_format=torch.channels_last)
            yield self._normalise(images), labels.to(self._device, non_blocking=True)

    def train(self, batch: int, workers: int, rank: int, seed: int, epoch: int) -> Iterator:
        # The loader's processes draw their seeds from this generator: other crops per worker and epoch.
        generator = augmentation_generator(seed, epoch, rank, torch.device("cpu"))
        return self._load(self._train, batches(self.train_size, batch, workers, rank, seed, epoch), generator)

    def test(self, batch: int, workers: int, rank: int, limit: int) -> Iterator:
        shard = np.arange(rank, self.test_size, workers)
        shard = np.random.default_rng(0).permutation(self.test_size)[shard][: -(-limit // workers)]
        return self._load(self._test, [shard[i : i + batch] for i in range(0, len(shard), batch)])


DATASETS = {"cifar10": Cifar10, "imagenet100": ImageNet100}
