"""The input path of ImageNet-100: the images that it reads per second, compared with the images that ResNet-50 needs.

    python bench/input.py results/bench [--quick]

The images are generated: JPEG files of 500 x 375 pixels, ImageNet's usual size, and their copy. All of them fit into
memory. There are three ways. The first decodes each file, crops it at random and flips some. The second does the same
with the copy. The third reads batches of the copy as runs do: several processes read ahead, and the device normalises.
Need: ResNet-50 trains (forward, backward and update) on batches that are in memory, on all cores or on the GPU. On the
GPU it also trains in bfloat16. The ways take turns. Rates are medians over rounds, with their middle half.
"""

import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from arguments import QUICK, parser
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iteration import DEVICE, now
from saving import save
from torchvision import transforms

from dlgs_bench import plugins
from dlgs_bench.data import Shard
from dlgs_bench.data.fetch.imagenet100 import CLASSES, copy
from dlgs_bench.data.imagenet100 import ImageNet100
from dlgs_bench.training.results import machine

CORES = len(os.sched_getaffinity(0))
WIDTH, HEIGHT, PER_CLASS = 500, 375, 4
QUALITY, NOISE = 90, 16  # of the JPEG files; the noise decides their bytes
SHARD = Shard(batch=50, workers=1, rank=0, seed=0)
BATCH = 64 if DEVICE.type == "cuda" else 8  # of the training


def generate(folder: Path) -> int:
    """Smooth images with some noise; return the mean of their files' bytes."""
    numbers, sizes = np.random.default_rng(0), []
    for name, (split, count) in itertools.product(CLASSES, (("train", PER_CLASS), ("val", 1))):
        (folder / split / name).mkdir(parents=True)
        for i in range(count):
            rough = Image.fromarray(numbers.integers(0, 256, (30, 40, 3), dtype=np.uint8))
            smooth = np.asarray(rough.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
            noisy = np.clip(smooth + numbers.normal(0, NOISE, smooth.shape), 0, 255).astype(np.uint8)
            path = folder / split / name / f"{i}.JPEG"
            Image.fromarray(noisy).save(path, quality=QUALITY)
            sizes.append(path.stat().st_size)
    return round(np.mean(sizes))


def decoded(folder: Path) -> Callable[[], int]:
    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    crop, files = transforms.Compose(crop), itertools.cycle(sorted(folder.glob("train/*/*.JPEG")))

    def image(path: Path) -> torch.Tensor:
        with Image.open(path) as opened:
            return crop(opened.convert("RGB"))

    return lambda: len(torch.stack([image(path) for path in itertools.islice(files, SHARD.batch)]))


def copied(root: Path) -> Callable[[], int]:
    data, numbers = ImageNet100(root, DEVICE), itertools.count()
    keys = ((0, 0, n % data.train_size) for n in numbers)
    return lambda: len(torch.stack([data._train[key][0] for key in itertools.islice(keys, SHARD.batch)]))


def run(root: Path) -> Callable[[], int]:
    data, steps = ImageNet100(root, DEVICE), itertools.count()
    return lambda: len(data.batch(next(steps), SHARD)[0])


def training(precision: torch.dtype) -> Callable[[], int]:
    model = plugins.load("models", "resnet50")
    net = model.build().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9, fused=True)
    images = torch.randn(BATCH, 3, 224, 224).to(DEVICE, memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (BATCH,)).to(DEVICE)

    def batch() -> int:
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == torch.bfloat16):
            outputs = net(images)
        model.loss(outputs.float(), labels).backward()
        optimizer.step()
        return BATCH

    return batch


def rate(batch: Callable[[], int], seconds: float) -> float:
    """Images per second. Batches are made for ``seconds``."""
    begun, images = now(), 0
    while (spent := now() - begun) < seconds:
        images += batch()
    return images / spent


def main(folder: Path, quick: bool) -> None:
    rounds, seconds = (2, 1) if quick else (7, 3)
    processes = ImageNet100.PROCESSES
    ahead = f"the copy, {processes} processes"
    with tempfile.TemporaryDirectory() as root:
        size = generate(Path(root) / "images")
        copy(Path(root) / "images", Path(root) / "imagenet100", CORES)
        ways = {
            "decoded, one core": (1, decoded(Path(root) / "images")),
            "the copy, one core": (1, copied(Path(root))),
            ahead: (processes, run(Path(root))),
            "ResNet-50 needs, float32": (CORES, training(torch.float32)),
        }
        if DEVICE.type == "cuda":
            ways["ResNet-50 needs, bfloat16"] = (CORES, training(torch.bfloat16))
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds + 1):
            for way, (cores, batch) in ways.items():
                torch.set_num_threads(cores)
                for _ in range(2 * processes if way == ahead else 1):  # prefetched while others had their turn
                    batch()
                rates[way].append(rate(batch, seconds))
    result = {way: np.array(measured[1:]) for way, measured in rates.items()}  # the first round warms up
    need = max(np.median(result[way]) for way in result if "needs" in way)
    rows = [
        {
            "way": way,
            "images_s": np.median(measured),
            "images_s_low": np.quantile(measured, 0.25),
            "images_s_high": np.quantile(measured, 0.75),
            "cores": ways[way][0],
            "over_need": np.median(measured) / need,
            "rounds": rounds,
        }
        for way, measured in result.items()
    ]
    words = f"JPEG files of {WIDTH} x {HEIGHT} pixels, {size / 1e3:.0f} kB in the mean. {machine(DEVICE.type)}."
    save(rows, folder, "input", words)


if __name__ == "__main__":
    asked = parser(__doc__, QUICK).parse_args()
    main(asked.folder, asked.quick)
