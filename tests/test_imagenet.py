"""ImageNet-100: its copy holds what the files hold, batches are what decoding anew would give, damage is refused."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import CPU, ROOT, make_imagenet, until

from dlgs_bench.data import Shard, normalise, training_indices
from dlgs_bench.data.fetch import DataError
from dlgs_bench.data.fetch import imagenet100 as fetch
from dlgs_bench.data.imagenet100 import DEVIATION, MEAN, Cropped, ImageNet100

pytestmark = pytest.mark.unit


def files(root: Path, split: str) -> list[tuple[Path, int]]:
    """The images of a split in their order, with their labels."""
    return [(p, i) for i, c in enumerate(fetch.CLASSES) for p in sorted((root / "images" / split / c).iterdir())]


def decoded(path: Path) -> np.ndarray:
    """An image as torchvision's own transform makes it from its file."""
    from torchvision import transforms  # takes a second, which every test would wait for at the top

    with Image.open(path) as image:
        return np.array(transforms.Resize(256)(image.convert("RGB")))


def here(root: Path) -> ImageNet100:
    """The data set, read in this process."""
    found = ImageNet100(root, CPU)
    found.PROCESSES = 0
    return found


def test_the_list_names_100_classes_in_order():
    assert len(set(fetch.CLASSES)) == 100 and sorted(fetch.CLASSES) == fetch.CLASSES


@pytest.mark.parametrize("split", fetch.SPLITS)
def test_the_copy_holds_the_same_bits_as_decoding_anew(split, imagenet):
    copied, expected = fetch.Images(imagenet / "imagenet100", split), files(imagenet, split)
    assert len(copied) == len(expected) == len(copied.labels)
    for i, (path, label) in enumerate(expected):
        assert np.array_equal(copied[i], decoded(path)) and copied.labels[i] == label
    assert {copied[i].shape[:2].index(256) for i in range(len(copied))} == {0, 1}  # wide ones and tall ones


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (256, 256), (256, 999), (1, 3), (300, 299)])
def test_a_copied_image_has_the_size_that_torchvision_gives_it(size, tmp_path):
    Image.new("RGB", size).save(tmp_path / "one.png")
    assert fetch._size(tmp_path / "one.png") == decoded(tmp_path / "one.png").shape[:2]


@pytest.mark.parametrize("kind", ["L", "CMYK"])
def test_an_image_of_other_colours_is_copied_as_rgb(kind, tmp_path):
    path = tmp_path / "one.JPEG"
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert(kind).save(path)
    assert np.array_equal(fetch._resized(path, 256, 256), decoded(path))


def test_batches_are_what_decoding_anew_and_drawing_by_seed_epoch_and_image_gives(imagenet):
    data, shard = here(imagenet), Shard(12, 3, 1, seed=4)
    trained = files(imagenet, "train")
    from torchvision.transforms import v2

    crop, flip = v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()
    last = data.steps(shard)
    for step in (0, last - 1, last):
        expected, labels = [], []
        for index in training_indices(200, step, shard):
            path, label = trained[index]
            state = np.random.SeedSequence([4, step // last, index, 0xA06]).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(state >> 1))
            expected.append(flip(crop(torch.from_numpy(decoded(path)).permute(2, 0, 1))))
            labels.append(label)
        images, found = data.batch(step, shard)
        assert torch.equal(images, normalise(torch.stack(expected), MEAN, DEVIATION)) and found.tolist() == labels
        assert images.is_contiguous(memory_format=torch.channels_last) and found.dtype == torch.int64


def test_test_batches_are_what_decoding_anew_gives(imagenet):
    from torchvision.transforms import v2

    centre, tested = v2.CenterCrop(224), files(imagenet, "val")
    order = np.random.default_rng(0).permutation(100)
    (images, labels), *_ = here(imagenet).test(30, Shard(12, 1, 0, seed=0), 100)
    expected = [centre(torch.from_numpy(decoded(tested[i][0])).permute(2, 0, 1)) for i in order[:30]]
    assert torch.equal(images, normalise(torch.stack(expected), MEAN, DEVIATION))
    assert labels.tolist() == [tested[i][1] for i in order[:30]]


def weights(length: int) -> np.ndarray:
    """How 224 resized entries come from ``length``: each from those around it, by a triangle as wide as two steps."""
    step = length / 224
    centres = (np.arange(224)[:, None] + 0.5) * step
    found = np.maximum(0, 1 - abs(np.arange(length) + 0.5 - centres) / max(step, 1))
    return found / found.sum(1, keepdims=True)


def test_a_resized_crop_against_its_definition(imagenet):
    from torchvision.transforms.v2 import functional

    images = fetch.Images(imagenet / "imagenet100", "train")
    for index, (top, left, height, width) in enumerate([(0, 0, 256, 256), (7, 30, 90, 120), (50, 3, 200, 224)]):
        part = images[index][top : top + height, left : left + width].astype(float)
        expected = np.einsum("ih,jw,hwc->ijc", weights(part.shape[0]), weights(part.shape[1]), part, optimize=True)
        image = torch.from_numpy(images[index]).permute(2, 0, 1)
        found = functional.resized_crop(image, top, left, *part.shape[:2], [224, 224]).permute(1, 2, 0).numpy()
        assert abs(found - expected).max() <= 1.01  # levels of 255: rounded once in each direction


class Draws:
    """Replaces images: returns the random numbers of their crops."""

    labels = (0, 0)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.zeros((4, 4, 3), np.uint8)


def test_the_crop_of_an_image_depends_on_seed_epoch_and_image_alone():
    draws = Cropped(Draws(), lambda image: torch.rand(3, 1, 1))
    seen = {tuple(draws[key][0].flatten().tolist()) for key in itertools.product((0, 1), repeat=3)}
    assert len(seen) == 8
    assert torch.equal(draws[0, 1, 1][0], draws[0, 1, 1][0])


@pytest.fixture
def broken(imagenet, tmp_path) -> Iterator[Path]:
    """A copy of the copy, to break; 65 MB that no test leaves behind."""
    shutil.copytree(imagenet / "imagenet100", tmp_path / "imagenet100")
    yield tmp_path / "imagenet100"
    shutil.rmtree(tmp_path / "imagenet100")


def rewrite(folder: Path, **changes) -> None:
    """Other arrays in the index."""
    with np.load(folder / "index.npz") as file:
        arrays = dict(file) | changes
    np.savez(folder / "index.npz", **arrays)


def shorten(folder: Path) -> None:
    with (folder / "train.npy").open("r+b") as file:
        file.truncate(1_000_000)


DAMAGES = {
    "no copy of ImageNet-100; snakemake makes it": lambda folder: (folder / "index.npz").unlink(),
    "index.npz: cannot be read .*; delete": lambda folder: (folder / "index.npz").write_bytes(b"PK\x03\x04 damaged"),
    "train.npy: cannot be read .*; delete": shorten,
    "val.npy: cannot be read .*; delete": lambda folder: (folder / "val.npy").unlink(),
    "val.npy: does not hold the 100 images": lambda folder: shutil.copy(folder / "train.npy", folder / "val.npy"),
    "the format is .*, should be .*; delete": lambda folder: rewrite(folder, format=np.array("ImageNet-100, at 128")),
    "the classes are not the classes of ImageNet-100": lambda folder: rewrite(
        folder, classes=np.array([*fetch.CLASSES[:99], "n99999999"])
    ),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_a_copy_that_is_damaged_or_not_ours_is_refused_in_one_line(said, broken):
    fetch.verify(broken)
    DAMAGES[said](broken)
    with pytest.raises(DataError, match=said) as refused:
        fetch.verify(broken)
    assert "\n" not in str(refused.value) and str(broken) in str(refused.value)
    with pytest.raises(DataError, match=said):
        ImageNet100(broken.parent, CPU)


@pytest.mark.parametrize("processes", [0, 1])
def test_a_damaged_image_is_refused_in_one_line_where_it_is_read(processes, broken):
    data, shard = ImageNet100(broken.parent, CPU), Shard(5, 1, 0, seed=0)
    data.PROCESSES = processes
    image = int(training_indices(200, 1, shard)[2])
    start, size = data._train._images._starts[image], (broken / "train.npy").stat().st_size
    with (broken / "train.npy").open("r+b") as file:
        file.seek(size - int(data._train._images._starts[-1]) + int(start) + 1000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    data.batch(0, shard)
    with pytest.raises(DataError, match=rf"^{broken}/train.npy: image {image} is damaged; delete the folder and run"):
        data.batch(1, shard)


def test_what_cannot_be_copied_is_refused_and_leaves_what_was_there(imagenet, tmp_path):
    shutil.copytree(imagenet / "images", tmp_path / "images")
    image = tmp_path / "images" / "train" / fetch.CLASSES[0] / "0.JPEG"  # the first: no other one is decoded
    image.write_bytes(image.read_bytes()[:900])  # the head is whole
    target = tmp_path / "data" / "imagenet100"
    for _ in range(2):
        with pytest.raises(DataError, match=rf"^{image}: cannot be read \(.*\); fix or delete it") as refused:
            fetch.copy(tmp_path / "images", target, threads=2)
        assert "\n" not in str(refused.value) and not list(target.parent.glob("*.partial"))
        assert sorted(tmp_path.glob("data/*/*")) == ([target / "whole"] if target.exists() else [])
        target.mkdir(exist_ok=True)
        (target / "whole").touch()
    for path in image.parent.iterdir():
        path.unlink()
    with pytest.raises(DataError, match=f"^{image.parent}: holds no image; give a folder with"):
        fetch.copy(tmp_path / "images", target, threads=2)


def test_an_archive_that_is_being_unpacked_is_refused(imagenet, tmp_path):
    shutil.copytree(imagenet / "images", tmp_path / "images")
    first = fetch.CLASSES[0]
    shutil.copy(tmp_path / "images" / "val" / first / "0.JPEG", tmp_path / "images" / "val" / first / "9.JPEG")
    said = rf"val: n\d+ has fewer images \(1\) than {first} \(2\), .*; unpack the archive to its end, then run again$"
    with pytest.raises(DataError, match=said):
        fetch.copy(tmp_path / "images", tmp_path / "imagenet100", threads=2)
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_two_processes_do_not_make_the_same_copy(imagenet, tmp_path):
    target = tmp_path / "imagenet100"
    with fetch._own(tmp_path / "imagenet100.partial") as partly:
        (partly / "train.npy").touch()
        with pytest.raises(DataError, match=r"imagenet100.partial: another process is making this copy; wait for it"):
            fetch.copy(imagenet / "images", target, threads=2)
        assert (partly / "train.npy").exists()
    fetch.copy(imagenet / "images", target, threads=2)
    fetch.verify(target)


def test_a_disk_without_room_is_named_before_an_image_is_decoded(imagenet, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(fetch, "_resized", None)
    with pytest.raises(DataError, match=r"train.npy: No space left on device; the images of .* take 0.04\d* GB$"):
        fetch.copy(imagenet / "images", tmp_path / "imagenet100", threads=1)
    assert not list(tmp_path.iterdir())


def test_a_copy_that_was_killed_leaves_nothing_that_looks_whole_and_the_next_one_is(tmp_path):
    images, target = make_imagenet(tmp_path / "images", train=1), tmp_path / "imagenet100"
    blocked = images / "val" / fetch.CLASSES[0] / "0.JPEG"
    whole = blocked.read_bytes()
    blocked.unlink()
    os.mkfifo(blocked)  # who opens it waits: the training images are copied by then
    command = [sys.executable, "-m", "dlgs_bench.data.fetch", str(images), str(target), "2"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        assert until((tmp_path / "imagenet100.partial" / "train.npy").exists)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert [path.name for path in tmp_path.iterdir() if path != images] == ["imagenet100.partial"]
    with pytest.raises(DataError, match="no copy of ImageNet-100"):
        fetch.verify(target)
    blocked.unlink()
    blocked.write_bytes(whole)
    subprocess.run(command, cwd=ROOT, check=True)
    fetch.verify(target)
    assert [path.name for path in tmp_path.iterdir() if path != images] == ["imagenet100"]


def test_a_wrong_call_says_how_in_a_line(tmp_path):
    for arguments, said in (
        ([], "usage: "),
        (["a", "b", "c"], "usage: "),
        ([str(tmp_path), str(tmp_path / "t"), "1"], f"error: {tmp_path}/train/{fetch.CLASSES[0]}: holds no image"),
    ):
        command = [sys.executable, "-m", "dlgs_bench.data.fetch", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith(said) and "Traceback" not in done.stderr
