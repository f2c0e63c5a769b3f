"""Runs several commands until all have ended or one has failed; then it stops the others. No torch.

python -m dlgs_bench.launch.supervise <a JSON list of commands>

Output is printed as horovodrun prints it, [number]<stdout>:line.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dlgs_bench.launch.processes import TERM_GRACE_S
from dlgs_bench.testbed.namespaces import die_with_parent

# Arguments of Popen for workers that are passed to ``wait``.
LINES = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}


def wait(workers: list[subprocess.Popen], stop: Callable[[], None]) -> int:
    """Print the output of ``workers`` until all have ended or one has failed; then call ``stop``. Return the status."""
    readers = [
        threading.Thread(target=_forward, args=(number, worker), daemon=True) for number, worker in enumerate(workers)
    ]
    for reader in readers:
        reader.start()
    ended = [None]
    while None in ended and not any(ended):
        time.sleep(0.1)
        ended = [worker.poll() for worker in workers]
    for number, status in enumerate(ended):
        if status:
            readers[number].join(5)  # print its lines before those that the others print when they are stopped
            print(f"worker {number} ended with status {status}, the others are stopped", flush=True)
    stop()
    for reader in readers:
        reader.join(5)
    return int(any(ended))


def _forward(number: int, worker: subprocess.Popen) -> None:
    for line in worker.stdout:
        sys.stdout.write(f"[{number}]<stdout>:{line.rstrip()}\n")
        sys.stdout.flush()


def main(commands: str) -> int:
    die_with_parent(os.getppid())
    workers = []

    def stop() -> None:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(TERM_GRACE_S)
            worker.kill()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for command in json.loads(commands):
            bind_life = partial(die_with_parent, os.getpid())
            workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=bind_life, **LINES))
        return wait(workers, stop)
    finally:
        stop()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
