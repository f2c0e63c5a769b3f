"""Checksums: whether files and records are what was written. No torch."""

import json
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

SEALED = (".csv", ".json")  # what other scripts read
SIGNATURE = "crc32"  # of a record's other values


def of(path: Path) -> int | None:
    """The checksum of a file, or None if there is none."""
    return zlib.crc32(path.read_bytes()) if path.exists() else None


def seal(paths: Iterable[Path]) -> None:
    """Leave the checksum of each table beside it, as far as the disk has room."""
    for path in paths:
        if path.suffix in SEALED and path.exists():
            with suppress(OSError):
                _beside(path).write_text(f"{of(path)}\n", encoding="utf-8")


def unseal(path: Path) -> None:
    """Take the checksum of a table away: it is about to be made again."""
    _beside(path).unlink(missing_ok=True)


def altered(path: Path) -> bool:
    """Whether a table is not what was sealed; of one without a checksum nobody knows."""
    known = _beside(path)
    return known.exists() and known.read_text(encoding="utf-8") != f"{of(path)}\n"


def read(path: Path) -> Any:
    """What a JSON file says; ValueError in one line if it is not what was sealed."""
    if altered(path):
        raise ValueError("it is not what was written")
    return json.loads(path.read_text(encoding="utf-8"))


def signed(record: dict) -> dict:
    """The record of a run with its own checksum."""
    rest = {key: value for key, value in record.items() if key != SIGNATURE}
    return rest | {SIGNATURE: zlib.crc32(json.dumps(rest, sort_keys=True).encode())}


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc32")
