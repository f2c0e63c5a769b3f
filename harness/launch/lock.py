"""Snakemake's lock on this folder: who holds it, so that one left by a killed workflow can be taken away. No torch."""

import json
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from harness.launch.namespaces import born

LOCKS = Path(".snakemake", "locks")
HOLDER = Path(".snakemake", "holder.json")
START = Path("/proc/sys/kernel/random/boot_id")  # another one after each start of the machine


def hold() -> None:
    """Say that this process has taken the lock."""
    HOLDER.write_text(json.dumps(_signature(os.getpid())))


def free() -> None:
    """Take the lock away if the process that took it is gone. One that nobody signed for stays, and so does one of
    another machine, whose processes cannot be seen from here."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        holder = json.loads(HOLDER.read_text())
        if holder["machine"] == socket.gethostname() and holder != _signature(holder["process"]):
            shutil.rmtree(LOCKS)
            HOLDER.unlink()


def _signature(process: int) -> dict:
    """A process, as no other is or was."""
    return {
        "machine": socket.gethostname(), "start": START.read_text().strip(),
        "process": process, "born": born(process),
    }  # fmt: skip
