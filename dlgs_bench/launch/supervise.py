"""Runs several commands until all have ended or one has failed; then it stops the others. No torch.

python -m dlgs_bench.launch.supervise <a file with a JSON list of commands, one per node>

Output is printed as horovodrun prints it, [number]<stdout>:line.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dlgs_bench.launch.processes import SAVE_GRACE_S, TERM_GRACE_S
from dlgs_bench.testbed.namespaces import die_with_parent

# Arguments of Popen for workers that are passed to ``wait``.
LINES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
# Matches the output if a signal other than SIGTERM killed a rank.
KILLED = re.compile(r"^rank (\d+) ended with status -(?!15\b)\d", re.MULTILINE)


def wait(workers: list[subprocess.Popen], what: str, stop: Callable[[], None]) -> int:
    """Print the output of ``workers`` until all have ended or one has failed; then call ``stop``. Return the status.

    ``what``: what a worker is called in messages.
    """
    readers = [
        threading.Thread(target=_forward, args=(number, worker), daemon=True) for number, worker in enumerate(workers)
    ]
    for reader in readers:
        reader.start()
    ended: list[int | None] = [None]
    while None in ended and not any(ended):
        time.sleep(0.1)
        ended = [worker.poll() for worker in workers]
    for number, status in enumerate(ended):
        if status:
            readers[number].join(5)  # print its lines before those that the others print when they are stopped
            print(f"{what} {number} ended with status {status}, the others are stopped", flush=True)
    stop()
    for reader in readers:
        reader.join(5)
    return int(any(ended))


def _forward(number: int, worker: subprocess.Popen) -> None:
    for line in worker.stdout:
        with suppress(OSError):  # go on reading, for example on a full disk: a worker waits if its pipe is full
            sys.stdout.write(f"[{number}]<stdout>:{line.rstrip()}\n")
            sys.stdout.flush()


def run(commands: Sequence[Sequence[str]], what: str) -> int:
    """Run ``commands`` as ``wait`` does, each until this process ends at the latest. Return the status."""
    workers: list[subprocess.Popen] = []

    def stop(grace_s: float = TERM_GRACE_S) -> None:
        for worker in workers:
            worker.terminate()
        end = time.monotonic() + grace_s
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(max(0.0, end - time.monotonic()))
            worker.kill()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for command in commands:
            bind_life = partial(die_with_parent, os.getpid())
            workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=bind_life, **LINES))
        return wait(workers, what, stop)
    except SystemExit:  # SIGTERM may have reached all processes, as at Slurm's time limit, and training then saves
        stop(SAVE_GRACE_S)
        raise
    finally:
        stop()


def main(commands: str) -> int:
    die_with_parent(os.getppid())
    return run(json.loads(Path(commands).read_text(encoding="utf-8")), "node")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
