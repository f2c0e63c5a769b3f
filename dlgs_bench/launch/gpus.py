"""Reserves GPUs of this machine for runs, so that concurrent runs use different GPUs. No torch."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

from dlgs_bench.file_lock import locked
from dlgs_bench.launch.nodes import Refused
from dlgs_bench.spec import LaunchSettings, RunSpec

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible() -> list[str]:
    """The GPUs that this process may use, in the notation of ``VISIBLE``."""
    if VISIBLE in os.environ:
        named = takewhile(lambda gpu: gpu != "-1", os.environ[VISIBLE].split(","))  # CUDA ignores GPUs after -1
        return [gpu for gpu in named if gpu]
    return _uuids()


def _uuids() -> list[str]:
    """The UUIDs of the GPUs that this machine shows, in its order."""
    if not shutil.which("nvidia-smi"):
        return []
    output = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return re.findall(r"^GPU .*UUID: ([^)]+)\)", output, re.MULTILINE)


@cache
def lack_bfloat16() -> bool:
    """Whether a GPU that this process may use cannot multiply in bfloat16: its compute capability is below 8.0."""
    if not shutil.which("nvidia-smi") or not (own := visible()):
        return False
    command = ["nvidia-smi", f"--id={','.join(own)}", "--query-gpu=compute_cap", "--format=csv,noheader"]
    output = subprocess.run(command, capture_output=True, text=True).stdout
    return any(float(capability) < 8 for capability in re.findall(r"^\d+\.\d+$", output, re.MULTILINE))


def _lock_names() -> dict[str, str]:
    """Visible GPU -> the name of its lock file, which is the same for the GPU's number and its UUID."""
    uuids = _uuids()
    numbered = {str(number): uuid for number, uuid in enumerate(uuids)}
    return {gpu: numbered.get(gpu, gpu).replace("/", "-") for gpu in visible()}


def wanted(spec: RunSpec, settings: LaunchSettings) -> int:
    """The number of GPUs of this machine that a run needs."""
    local_gpus = spec.cluster.device == "cuda" and settings.by == "local"
    return -(-spec.processes // settings.per_gpu) if local_gpus else 0


def _lock_folder() -> Path:
    """The folder of lock files; Refused if it is another user's, whose links could lead to files of this user."""
    folder = Path(tempfile.gettempdir()) / f"gpus-taken-by-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Refused(f"device: {folder} is not a folder of this user; remove it, or set TMPDIR to another folder")
    return folder


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


@contextmanager
def taken(count: int) -> Iterator[list[str]]:
    """Wait until ``count`` visible GPUs are free, and reserve them while the context is open.

    Other runs of this user get other GPUs. The kernel releases the locks of a process that was killed. Refused if this
    machine has fewer GPUs.
    """
    names = _lock_names()
    if len(names) < count:
        raise Refused(f"device: cuda needs {count} GPUs, this machine shows {len(names)}; use fewer workers")
    folder = _lock_folder()
    while True:
        with ExitStack() as locks:
            reserved: list[str] = []
            for gpu, name in names.items():
                if len(reserved) < count and locked(
                    locks.enter_context(open(folder / name, "a", encoding="utf-8", opener=_no_link))
                ):
                    reserved.append(gpu)
            if len(reserved) == count:
                yield reserved
                return
        time.sleep(1)
