"""Snakemake's lock on this folder: who holds it, so that one left by a killed workflow can be taken away. No torch."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import psutil

LOCKS = Path(".snakemake", "locks")
HOLDER = Path(".snakemake", "holder.json")


def hold() -> None:
    """Say that this process has taken the lock."""
    HOLDER.write_text(json.dumps(_birth(os.getpid())))


def free() -> None:
    """Take the lock away if the process that took it is gone; one that nobody signed for stays."""
    with suppress(OSError, ValueError):
        holder = json.loads(HOLDER.read_text())
        if holder != _birth(holder[0]):
            shutil.rmtree(LOCKS)
            HOLDER.unlink()


def _birth(number: int) -> list | None:
    """A process: its number and when it began, which tells it from a later one with its number."""
    try:
        return [number, psutil.Process(number).create_time()]
    except psutil.NoSuchProcess:
        return None
