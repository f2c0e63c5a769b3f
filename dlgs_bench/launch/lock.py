"""The kernel's lock on a file, and Snakemake's on this folder, taken away if its workflow is gone. No torch."""

import errno
import fcntl
import json
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

from dlgs_bench.launch.namespaces import born

LOCKS = Path(".snakemake", "locks")
HOLDER = Path(".snakemake", "holder.json")
START = Path("/proc/sys/kernel/random/boot_id")  # another one after each start of the machine
NUMBERS = Path("/proc/self/ns/pid")  # another one where processes have other numbers, as in another container


def locked(file: IO) -> bool:
    """Take the kernel's lock on an open file, until it is closed; False if another has it. The kernel frees those of a
    process that was killed. Where the file system has no locks, nobody can know of others: that is True."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
    return True


def hold() -> None:
    """Say that this process has taken Snakemake's lock."""
    HOLDER.write_text(json.dumps(_signature(os.getpid())), encoding="utf-8")


def free() -> None:
    """Take Snakemake's lock away if the process that took it is gone. One that nobody signed for stays, and so does one
    of another machine or container, whose processes cannot be seen from here."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        holder = json.loads(HOLDER.read_text(encoding="utf-8"))
        now = _signature(holder["process"])
        restarted, seen = holder["start"] != now["start"], holder["numbers"] == now["numbers"]
        if holder["machine"] == now["machine"] and (restarted or (seen and holder != now)):
            shutil.rmtree(LOCKS)
            HOLDER.unlink()


def _signature(process: int) -> dict:
    """A process, as no other is or was."""
    return {
        "machine": socket.gethostname(), "start": START.read_text(encoding="utf-8").strip(),
        "numbers": str(NUMBERS.readlink()), "process": process, "born": born(process),
    }  # fmt: skip
