"""The removal of Snakemake's lock if its workflow is gone. No torch."""

import json
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from dlgs_bench.testbed.namespaces import NUMBERS, start_time

LOCKS = Path(".snakemake", "locks")
HOLDERS = Path(".snakemake", "holders")  # a file for each workflow: several can run here if their files differ
START = Path("/proc/sys/kernel/random/boot_id")  # differs after each start of the machine


def hold() -> None:
    """Record that this process holds a lock of Snakemake. If there is no other lock, delete all other records."""
    HOLDERS.mkdir(parents=True, exist_ok=True)
    if len(list(LOCKS.glob("*.output.lock"))) <= 1:  # a workflow has one
        for path in HOLDERS.iterdir():
            path.unlink(missing_ok=True)
    path = HOLDERS / f"{socket.gethostname()}-{os.getpid()}.json"
    path.write_text(json.dumps(_signature(os.getpid())), encoding="utf-8")


def alone() -> bool:
    """Whether no other workflow has recorded that it holds a lock."""
    return len(list(HOLDERS.glob("*.json"))) <= 1


def free() -> None:
    """Remove Snakemake's locks if all processes that held one are gone.

    A lock without a recorded holder stays. So does a lock from another machine or container, because its processes are
    not visible here.
    """
    with suppress(OSError):
        holders = list(HOLDERS.iterdir())
        gone = [path for path in holders if _gone(path)]
        if holders and gone == holders:
            shutil.rmtree(LOCKS, ignore_errors=True)
        for path in gone:
            path.unlink()


def _gone(path: Path) -> bool:
    """Whether the process that wrote this file is known to have ended."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        now = _signature(holder["process"])
        restarted = holder["start"] != now["start"]
        visible = holder["numbers"] == now["numbers"]
        return holder["machine"] == now["machine"] and (restarted or (visible and holder != now))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _signature(process: int) -> dict:
    """A description that identifies a process uniquely, also after it has ended."""
    return {
        "machine": socket.gethostname(), "start": START.read_text(encoding="utf-8").strip(),
        "numbers": str(NUMBERS.readlink()), "process": process, "process_start": start_time(process),
    }  # fmt: skip
