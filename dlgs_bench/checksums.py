"""Checksums that show whether files and records have changed since they were written. No torch."""

import json
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

CHECKED = (".csv", ".json")  # the endings of files that other scripts read
SIGNATURE = "crc32"  # the key of the checksum in a record


def of(path: Path) -> int | None:
    """The checksum of a file, or None if the file does not exist."""
    return zlib.crc32(path.read_bytes()) if path.exists() else None


def write_for(paths: Iterable[Path]) -> None:
    """Write the checksum of each table to a file next to it, unless the disk is full."""
    for path in paths:
        if path.suffix in CHECKED and path.exists():
            with suppress(OSError):
                _checksum_file(path).write_text(f"{of(path)}\n", encoding="utf-8")


def remove_for(path: Path) -> None:
    """Remove the checksum of a table that will be written again."""
    _checksum_file(path).unlink(missing_ok=True)


def mismatched(path: Path) -> bool:
    """Whether a table does not match its checksum; False for a table without a checksum."""
    checksum = _checksum_file(path)
    return checksum.exists() and checksum.read_text(encoding="utf-8") != f"{of(path)}\n"


def read(path: Path) -> Any:
    """The content of a JSON file; ValueError in one line if it does not match its checksum."""
    if mismatched(path):
        raise ValueError("the content does not match its checksum")
    return json.loads(path.read_text(encoding="utf-8"))


def signed(record: dict) -> dict:
    """The record of a run, with a checksum of its other values."""
    rest = {key: value for key, value in record.items() if key != SIGNATURE}
    return rest | {SIGNATURE: zlib.crc32(json.dumps(rest, sort_keys=True).encode())}


def _checksum_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc32")
