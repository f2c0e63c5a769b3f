"""The classes of ImageNet-100, and a copy of its decoded images that can be read quickly. No torch.

The user must provide the images. The classes are the subset usually called ImageNet-100 (Tian, Krishnan, Isola:
Contrastive Multiview Coding, 2019). The DLGS paper does not name its 100 classes.

The copy is a folder. ``train.npy`` and ``val.npy`` hold the pixels of all images, decoded and resized, one image after
the other. ``index.npz`` holds the size, the class and the checksum of each image.
"""

import os
import shutil
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dlgs_bench.data.fetch import DataError
from dlgs_bench.file_lock import locked

IDS = """
    n01558993 n01692333 n01729322 n01735189 n01749939 n01773797 n01820546 n01855672 n01978455 n01980166 n01983481
    n02009229 n02018207 n02085620 n02086240 n02086910 n02087046 n02089867 n02089973 n02090622 n02091831 n02093428
    n02099849 n02100583 n02104029 n02105505 n02106550 n02107142 n02108089 n02109047 n02113799 n02113978 n02114855
    n02116738 n02119022 n02123045 n02138441 n02172182 n02231487 n02259212 n02326432 n02396427 n02483362 n02488291
    n02701002 n02788148 n02804414 n02859443 n02869837 n02877765 n02974003 n03017168 n03032252 n03062245 n03085013
    n03259280 n03379051 n03424325 n03492542 n03494278 n03530642 n03584829 n03594734 n03637318 n03642806 n03764736
    n03775546 n03777754 n03785016 n03787032 n03794056 n03837869 n03891251 n03903868 n03930630 n03947888 n04026417
    n04067472 n04099969 n04111531 n04127249 n04136333 n04229816 n04238763 n04336792 n04418357 n04429376 n04435653
    n04485082 n04493381 n04517823 n04589890 n04592741 n07714571 n07715103 n07753275 n07831146 n07836838 n13037406
    n13040303
"""

# Sorted. The label of a class is its index in this list.
CLASSES = IDS.split()

SIDE = 256  # pixels of the shorter side of an image in the copy
FORMAT = f"ImageNet-100, RGB, shorter side {SIDE}, bilinear"
SPLITS = ("train", "val")
ENDINGS = (".jpeg", ".jpg", ".png")
AGAIN = "delete the folder and run again"


class Images:
    """The images of a split in the copy, mapped into memory.

    ``labels``: int64 (n,). DataError if the copy in ``folder`` is incomplete or has another format.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self._file = folder / f"{split}.npy"
        index = _index(folder)
        self.labels = index[f"{split}_labels"].astype(np.int64)
        self._sizes, self._sums = index[f"{split}_sizes"], index[f"{split}_sums"]
        self._starts = _starts(self._sizes)
        try:
            self._pixels = np.load(self._file, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"{self._file}: cannot be read ({error}); {AGAIN}") from None
        if self._pixels.dtype != np.uint8 or self._pixels.shape != (self._starts[-1],):
            raise DataError(f"{self._file}: does not hold the {len(self)} images of its index; {AGAIN}")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> np.ndarray:
        """An image, uint8 (height, width, 3); DataError if it is corrupt."""
        pixels = np.array(self._pixels[self._starts[index] : self._starts[index + 1]])
        if zlib.crc32(pixels.data) != self._sums[index]:
            raise DataError(f"{self._file}: image {index} is damaged; {AGAIN}")
        return pixels.reshape(*self._sizes[index], 3)


def verify(folder: Path) -> None:
    """Raise DataError unless the copy in ``folder`` has the right format and its files have the right lengths."""
    for split in SPLITS:
        Images(folder, split)


def _index(folder: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(folder / "index.npz") as file:
            index = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise DataError(f"{folder}: no copy of ImageNet-100; snakemake makes it") from None
    except Exception as error:
        raise DataError(f"{folder}/index.npz: cannot be read ({error}); {AGAIN}") from None
    if (given := str(index.get("format"))) != FORMAT:
        raise DataError(f"{folder}: the format is {given}, should be {FORMAT}; {AGAIN}")
    if index["classes"].tolist() != CLASSES:
        raise DataError(f"{folder}: the classes are not the classes of ImageNet-100; {AGAIN}")
    return index


def _starts(sizes: np.ndarray) -> np.ndarray:
    """The offset of each image, and the end of the last image; ``sizes``: height and width of each image."""
    return np.concatenate([[0], np.cumsum(3 * sizes.astype(np.int64).prod(1))])


def copy(source: Path, target: Path, threads: int) -> None:
    """Copy the images in ``source``, with its ``train/<class id>/`` and ``val/<class id>/``, to the folder ``target``.

    The copy is written completely or not at all. DataError if an image cannot be read, the disk is too small, classes
    of ``val`` have different numbers of images, or another process is copying to ``target``.
    """
    files = _listed(source)
    with _own(target.with_name(f"{target.name}.partial")) as partly:
        index: dict[str, Any] = {"format": np.array(FORMAT), "classes": np.array(CLASSES)}
        with ThreadPoolExecutor(threads) as pool:  # Pillow releases Python's global lock
            for split in SPLITS:
                index |= _copy_split(files[split], partly / f"{split}.npy", pool)
        np.savez(partly / "index.npz", **index)
        shutil.rmtree(target, ignore_errors=True)
        partly.replace(target)


def _listed(source: Path) -> dict[str, list[tuple[Path, int]]]:
    """Split -> the image files of all classes, with their labels.

    DataError unless all classes have images, and all of ``val`` the same number, as they have in ImageNet.
    """
    files = {split: [_files(source / split / name) for name in CLASSES] for split in SPLITS}
    fewest, most = min(files["val"], key=len), max(files["val"], key=len)
    if len(fewest) < len(most):
        small, large = fewest[0].parent, most[0].parent
        raise DataError(
            f"{small.parent}: {small.name} has fewer images ({len(fewest)}) than {large.name} ({len(most)}), and all "
            "classes of ImageNet have 50 there; unpack the archive to its end, then run again"
        )
    return {split: [(path, i) for i, own in enumerate(every) for path in own] for split, every in files.items()}


@contextmanager
def _own(folder: Path) -> Iterator[Path]:
    """An empty folder that no other process writes, which is removed after an error."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        if not locked(held) or not folder.exists():  # a process that just ended has renamed or removed it
            raise DataError(f"{folder}: another process is making this copy; wait for it, then run again")
        try:
            for path in folder.iterdir():
                path.unlink()
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(held)


def _copy_split(files: list[tuple[Path, int]], target: Path, pool: ThreadPoolExecutor) -> dict[str, np.ndarray]:
    """Write the pixels of a split, and return its part of the index."""
    paths = [path for path, _ in files]
    sizes = np.array(list(pool.map(_size, paths)), np.int32)
    starts = _starts(sizes)
    pixels = np.lib.format.open_memmap(target, "w+", np.uint8, (int(starts[-1]),))
    try:
        with target.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, target.stat().st_size)
    except OSError as error:
        images = f"the images of {paths[0].parent.parent} take {len(pixels) / 1e9:.3g} GB"
        raise DataError(f"{target}: {error.strerror}; {images}") from None

    def write(path: Path, size: np.ndarray, start: int) -> int:
        image = _resized(path, *size)
        pixels[start : start + image.size] = image.reshape(-1)
        return zlib.crc32(image.data)

    sums = list(pool.map(write, paths, sizes, starts))
    pixels.flush()
    return {
        f"{target.stem}_labels": np.array([label for _, label in files], np.uint8),
        f"{target.stem}_sizes": sizes,
        f"{target.stem}_sums": np.array(sums, np.uint32),
    }


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in ENDINGS)
    if not files:
        raise DataError(f"{folder}: holds no image; give a folder with train/<class id>/ and val/<class id>/")
    return files


def _size(path: Path) -> tuple[int, int]:
    """The height and width of an image in the copy. Only the header of its file is read."""
    with _opened(path) as image:
        width, height = image.size
    short = min(width, height)
    return SIDE * height // short, SIDE * width // short


def _resized(path: Path, height: int, width: int) -> np.ndarray:
    """An image, uint8 (height, width, 3)."""
    with _opened(path) as image:
        return np.asarray(image.convert("RGB").resize((width, height), resample=2))  # bilinear


@contextmanager
def _opened(path: Path) -> Iterator:
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except Exception as error:  # Pillow raises many kinds of errors for a damaged file
        raise DataError(f"{path}: cannot be read ({error}); fix or delete it, then run again") from None
