"""ImageNet-100, read from a copy of decoded images by processes that prefetch batches."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dlgs_bench.data import DataSet, Shard, evaluation_indices, normalise, training_indices
from dlgs_bench.data.fetch import DataError
from dlgs_bench.data.fetch.imagenet100 import CLASSES, Images

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


class Cropped(torch.utils.data.Dataset):
    """Images of the copy, cropped by ``crop``, uint8 (224, 224, 3), with their labels.

    The key of a test image is its index. The key of a training image is (seed, epoch, index), which decides its crop
    and flip.
    """

    def __init__(self, images: Images, crop: Callable[[Tensor], Tensor]) -> None:
        self._images, self._crop = images, crop

    def __getitem__(self, key: int | tuple[int, int, int]) -> tuple[Tensor, int]:
        index = key if isinstance(key, int) else key[2]
        image = torch.from_numpy(self._images[index]).permute(2, 0, 1)
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global generator
            if not isinstance(key, int):
                state = np.random.SeedSequence([*key, 0xA06]).generate_state(1, np.uint64)[0]
                torch.default_generator.manual_seed(int(state >> 1))
            image = self._crop(image)
        return image.permute(1, 2, 0), self._images.labels[index]


class ImageNet100(DataSet):
    """Images of the 100 classes, 224x224, from the copy in the folder ``imagenet100``.

    The images of the copy have a shorter side of 256 pixels. Training images are random resized crops with random
    flips. Test images are centre crops. Consecutive steps come from one stream of prefetched batches. Any other step
    starts a new stream.
    """

    title = "ImageNet-100"
    classes = len(CLASSES)
    PROCESSES = min(4, len(os.sched_getaffinity(0)))  # they read and crop images

    def __init__(self, root: Path, device: torch.device) -> None:
        from torchvision.transforms import v2

        train, test = (Images(root / "imagenet100", split) for split in ("train", "val"))
        self._train = Cropped(train, v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()]))
        self._test = Cropped(test, v2.CenterCrop(224))
        self.train_size, self.test_size = len(train), len(test)
        # The images are sorted by class, but the first test images must have all classes.
        self._test_order = np.random.default_rng(0).permutation(self.test_size)
        self._device = device
        self._stream: Iterator[tuple[Tensor, Tensor]] | None = None
        self._stream_is_at: tuple[int, Shard] | None = None

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

    def _load(self, images: torch.utils.data.Dataset, batches: Iterable[list]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = torch.utils.data.DataLoader(
            images,
            batch_sampler=batches,
            num_workers=self.PROCESSES,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # otherwise the loader draws from the generator of the training
        )
        try:
            for pixels, labels in loader:
                pixels = pixels.to(self._device, non_blocking=True).permute(0, 3, 1, 2)
                yield normalise(pixels, MEAN, DEVIATION), labels.to(self._device, non_blocking=True)
        except DataError as error:  # raised in a process, so the message begins with a traceback
            raise DataError(str(error).splitlines()[-1].rpartition("DataError: ")[2]) from None

    @staticmethod
    def example() -> Tensor:
        return torch.zeros(1, 3, 224, 224)
