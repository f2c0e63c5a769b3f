"""The GPUs of this machine, which runs take so that those beside them use others. No torch."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

from dlgs_bench.launch.lock import locked
from dlgs_bench.launch.nodes import Refused
from dlgs_bench.spec import LaunchSettings, RunSpec

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible() -> list[str]:
    """The GPUs that this process may use, as ``VISIBLE`` names them."""
    if VISIBLE in os.environ:
        named = takewhile(lambda gpu: gpu != "-1", os.environ[VISIBLE].split(","))  # CUDA reads no further
        return [gpu for gpu in named if gpu]
    if not shutil.which("nvidia-smi"):
        return []
    shown = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return re.findall(r"^GPU .*UUID: ([^)]+)\)", shown, re.MULTILINE)


def wanted(spec: RunSpec, settings: LaunchSettings) -> int:
    """How many GPUs of this machine a run takes."""
    here = spec.cluster.device == "cuda" and settings.by == "local"
    return -(-spec.processes // settings.per_gpu) if here else 0


@contextmanager
def taken(count: int) -> Iterator[list[str]]:
    """``count`` of the visible GPUs, as soon as so many are free; other runs of this user get others until the end.

    The locks are the kernel's, which frees those of a process that was killed. Refused if there never are so many.
    """
    if len(visible()) < count:
        raise Refused(f"device: cuda needs {count} GPUs, this machine shows {len(visible())}")
    folder = Path(tempfile.gettempdir()) / f"gpus-taken-by-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        with ExitStack() as locks:
            found: list[str] = []
            for gpu in visible():
                if len(found) < count and locked(locks.enter_context((folder / gpu).open("w", encoding="utf-8"))):
                    found.append(gpu)
            if len(found) == count:
                yield found
                return
        time.sleep(1)
