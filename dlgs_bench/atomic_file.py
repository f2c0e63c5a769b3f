"""Files that readers see whole or not at all. No torch."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: bytes, durable: bool = False) -> None:
    """Write a file, readable for all: a reader sees the old content or the new content, and never a part.

    Of two writers at the same time, the last one wins. ``durable``: wait for the disk, so that this is also true if
    the machine stops. OSError if the file cannot be written; nothing is left of it then.
    """
    number, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()  # a part of a file would keep a full disk full
        raise


def wait_for_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
