"""Checkpoints: an accuracy run that was stopped at any point continues, on the same machine with the same bits.

A checkpoint is a folder named after its step, with one file per rank. The first line of a file holds a checksum and the
run's identity. A checkpoint is valid only if every rank can read its own file. The two newest are kept.
"""

import hashlib
import io
import platform
import shutil
import signal
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dlgs_bench import fingerprint
from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.spec import RunSpec
from dlgs_bench.training.results import machine
from dlgs_bench.training.session import Session

KEPT = 2
POLL_INTERVAL_S = 1.0  # about how often the ranks agree on whether to save


class Stopped(SystemExit):
    """The run was asked to stop. It has saved a checkpoint unless the disk refused it."""


class Checkpoints:
    """Saves a session in ``folder`` every ``every_s`` seconds, and when the process receives SIGTERM.

    ``run``: the identity of the run. ``say``: writes a line to the run's log. ``cost``: how many checkpoints this
    process has saved, the seconds that took, and the bytes of the last one. ``machines``: on which the run has been,
    in turns; another machine may compute other bits. Every rank calls ``resume`` once and ``save_if_due`` after each
    step. Both methods communicate with the other ranks.
    """

    def __init__(self, folder: Path, every_s: float, run: str, say: Callable[[str], None]) -> None:
        self._folder, self._every_s = folder, every_s
        self._run, self._say = run, say
        self.machines: list[str] = []
        self._kept: list[int] = []  # rank 0: the steps of the checkpoints that it keeps, the newest first
        self._foreign: set[int] = set()  # rank 0: steps with checkpoints of another run; they stay until this run ends
        self._stop = threading.Event()
        self.cost = {"saved": 0, "seconds": 0.0, "bytes": 0}
        self._interval = self._remaining = 1  # steps between two polls of all ranks, and until the next poll
        self._saved_at = self._polled_at = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self.stop())

    def stop(self) -> None:
        """Ask all ranks to save and stop soon."""
        self._stop.set()

    def resume(self, session: Session) -> None:
        """Load the newest checkpoint of this run that every rank can read, if there is one."""
        here = machine(session.flat.parameters.device.type)
        self.machines = [here]
        saved = self._saved_steps() if session.comm.rank == 0 else []
        self._foreign = set(filter(self._is_foreign, saved))
        steps = [step for step in saved if step not in self._foreign]
        while step := _of_rank_0(session, steps[0] if steps else 0):
            state = self._read(step, session.comm.rank)
            if _all(session, state is not None):
                session.load_state_dict(state["session"])
                self._kept = steps
                *_, last = self.machines = state["machines"]
                if session.comm.rank == 0:
                    self._say(f"goes on after step {session.done}")
                if last != here:
                    self.machines = [*self.machines, here]
                    if session.comm.rank == 0:
                        self._say(f"the machine was {last}, and is {here}: it may compute other bits")
                return
            steps = steps[1:]
        if self._foreign:
            self._say(
                f"begins again: the checkpoint of step {max(self._foreign)} is of other code, other values or another "
                "torch or Python; it stays until this run ends, so what made it can go on from there"
            )

    def save_if_due(self, session: Session) -> None:
        """Save if a checkpoint is due or a rank was asked to stop. In the second case raise ``Stopped`` afterwards.

        The ranks agree by an all-reduce. It is made about every ``POLL_INTERVAL_S`` seconds, not in every step.
        """
        self._remaining -= 1
        if self._remaining:
            return
        due, interval, now = False, 0, time.monotonic()
        if session.comm.rank == 0:  # rank 0 decides what depends on the clock; the others add zeros
            due = now - self._saved_at >= self._every_s
            interval = max(1, round(self._interval * POLL_INTERVAL_S / max(now - self._polled_at, 1e-9)))
        own = torch.tensor([self._stop.is_set(), due, interval], dtype=torch.float32, device=session.comm.device)
        stops, due, interval = session.comm.allreduce(own).tolist()
        saved = (stops or due) and self._save(session)
        if stops:
            after = "to go on from there" if saved else "without a checkpoint of it"
            raise Stopped(f"stopped after step {session.done}, {after}")
        self._interval = self._remaining = int(interval)
        self._polled_at = time.monotonic()

    def _save(self, session: Session) -> bool:
        """Save a checkpoint; whether all ranks could write their file. If not, all files are deleted: they would keep a
        full disk full."""
        began, path = time.monotonic(), self._folder / str(session.done) / f"rank{session.comm.rank}"
        memory = io.BytesIO()
        torch.save({"session": session.state_dict(), "machines": self.machines}, memory)
        content = memory.getvalue()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _head(self._run.encode(), content) + b"\n" + content, durable=True)
            written = True
        except OSError as error:
            self._say(f"no checkpoint of step {session.done}: {error.strerror}")
            written = False
        complete = _all(session, written)
        if session.comm.rank == 0:
            self._delete_others(session.done, complete)
        self._saved_at = time.monotonic()
        seconds = self.cost["seconds"] + self._saved_at - began
        self.cost = {"saved": self.cost["saved"] + complete, "seconds": seconds, "bytes": len(content)}
        return complete

    def _delete_others(self, step: int, complete: bool) -> None:
        """Delete the checkpoints that the checkpoint of this step replaces, or itself if it is not complete."""
        if not complete:
            shutil.rmtree(self._folder / str(step), ignore_errors=True)
            return
        self._kept = [step, *self._kept][:KEPT]
        self._foreign.discard(step)
        for other in self._saved_steps():
            if other not in self._kept and other not in self._foreign:
                shutil.rmtree(self._folder / str(other), ignore_errors=True)

    def _saved_steps(self) -> list[int]:
        """The steps of which there are files, the newest first."""
        with suppress(OSError):
            return sorted((int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()), reverse=True)
        return []

    def _read(self, step: int, rank: int) -> dict | None:
        """The state of a rank; None if the file is missing, corrupt or of another run."""
        try:
            run, content, sound = self._parts(step, rank)
        except OSError:
            return None
        if not sound:
            self._say(f"the checkpoint of step {step} is damaged, rank {rank}")
            return None
        if run != self._run.encode():
            return None
        return torch.load(io.BytesIO(content), map_location=_to_own_gpu, weights_only=True)

    def _is_foreign(self, step: int) -> bool:
        """Whether rank 0's file of a step is of another run, and not damaged."""
        try:
            run, _, sound = self._parts(step, 0)
        except OSError:
            return False
        return sound and run != self._run.encode()

    def _parts(self, step: int, rank: int) -> tuple[bytes, bytes, bool]:
        """The run and the state in a rank's file, and whether its checksum is right; OSError if it cannot be read."""
        head, _, content = (self._folder / str(step) / f"rank{rank}").read_bytes().partition(b"\n")
        run = head.partition(b" ")[2]
        return run, content, head == _head(run, content)


def identity(spec: RunSpec) -> str:
    """SHA-256 of what decides a run's numbers: its spec, the code that it executes, the versions of torch and Python.

    The machine is not part of it: see ``Checkpoints.machines``. Python brings the text that language models learn.
    """
    versions = [torch.__version__, platform.python_version()]
    parts = [spec.to_json(), *fingerprint.fingerprints(fingerprint.behind_run(spec)), *versions]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _head(run: bytes, content: bytes) -> bytes:
    """The first line of a file, without the newline."""
    return b"%08x %s" % (zlib.crc32(run + content), run)


def _to_own_gpu(storage: Any, device: str) -> Any:
    """Move what was saved from a GPU to this rank's GPU, which may have another number."""
    return storage.cuda() if device.startswith("cuda") else storage


def _all(session: Session, yes: bool) -> bool:
    """Whether ``yes`` is true on all ranks."""
    count = session.comm.allreduce(torch.tensor([float(yes)], device=session.comm.device))
    return int(count) == session.comm.world_size


def _of_rank_0(session: Session, step: int) -> int:
    """The step that rank 0 names."""
    named = torch.tensor([step if session.comm.rank == 0 else -1], device=session.comm.device)
    return int(session.comm.start_max(named).wait())
