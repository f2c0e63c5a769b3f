"""ImageNet-100, decoded from image files by processes that work ahead of the training."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.data import DataSet, Shard, evaluation_indices, normalise, training_indices
from harness.data.fetch.imagenet100 import CLASSES

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


class Augmented(torch.utils.data.Dataset):
    """Training images by (seed, epoch, index), which decide their crops and flips."""

    def __init__(self, images: torch.utils.data.Dataset):
        self._images = images

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[Tensor, int]:
        state = np.random.SeedSequence([*key, 0xA06]).generate_state(1, np.uint64)[0]
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's one generator
            torch.default_generator.manual_seed(int(state >> 1))
            return self._images[key[2]]


class ImageNet100(DataSet):
    """Images of the 100 classes, 224x224, in the folders ``train/<class id>`` and ``val/<class id>``.

    Training images are random resized crops, flipped or not; test images are resized to 256 and cropped in the
    centre. Consecutive steps come from one stream of prefetched batches. Any other step starts a new stream.
    """

    title = "ImageNet-100"
    PROCESSES = 4  # that decode images

    def __init__(self, root: Path, device: torch.device):
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        class Folder(ImageFolder):
            def find_classes(self, directory):
                return CLASSES, {name: label for label, name in enumerate(CLASSES)}

        augmented = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        centred = [transforms.Resize(256), transforms.CenterCrop(224), transforms.PILToTensor()]
        train = Folder(root / "train", transforms.Compose(augmented))
        self._train, self._test = Augmented(train), Folder(root / "val", transforms.Compose(centred))
        self.train_size, self.test_size = len(train), len(self._test)
        # The folders are sorted by class: the first test images must be of all classes.
        self._test_order = np.random.default_rng(0).permutation(self.test_size)
        self._device = device
        self._stream, self._stream_is_at = None, None

    def batch(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        if self._stream_is_at != (step, shard):
            self._stream = None  # ends its processes before others start
            self._stream = self._load(self._train, (self._keys(s, shard) for s in count(step)))
        self._stream_is_at = (step + 1, shard)
        return next(self._stream)

    def _keys(self, step: int, shard: Shard) -> list[tuple[int, int, int]]:
        epoch = step // self.steps(shard)
        return [(shard.seed, epoch, int(i)) for i in training_indices(self.train_size, step, shard)]

    def test(self, batch: int, shard: Shard, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        indices = evaluation_indices(self.test_size, batch, shard, limit)
        return self._load(self._test, [self._test_order[part].tolist() for part in indices])

    def _load(self, images: torch.utils.data.Dataset, batches) -> Iterator[tuple[Tensor, Tensor]]:
        loader = torch.utils.data.DataLoader(
            images,
            batch_sampler=batches,
            num_workers=self.PROCESSES,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # or the loader would draw from the generator that training uses
        )
        for pixels, labels in loader:
            pixels = pixels.to(self._device, non_blocking=True, memory_format=torch.channels_last)
            yield normalise(pixels, MEAN, DEVIATION), labels.to(self._device, non_blocking=True)

    @staticmethod
    def example() -> Tensor:
        return torch.zeros(1, 3, 224, 224)
