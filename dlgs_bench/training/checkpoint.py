"""Checkpoints: all that an accuracy run needs to go on, bit for bit, after it was stopped anywhere.

A checkpoint is a folder named after its step, with a file for each rank, whose first line says by a checksum what it is
and whose run it is of. It counts if every rank can read its own; the two newest are kept.
"""

import hashlib
import io
import shutil
import signal
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from dlgs_bench import fingerprint
from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.spec import RunSpec
from dlgs_bench.training.session import Session

KEPT = 2
POLL_INTERVAL_S = 1.0  # about how often the ranks agree on whether to save


class Stopped(SystemExit):
    """The run was asked to end, and has left a checkpoint if it could."""


class Checkpoints:
    """Saves a session in ``folder`` every ``every_s``, and when the process gets SIGTERM.

    ``run``: whose checkpoints they are; ``say``: tells a person; ``cost``: of those of this rank and sitting, bytes
    of the last one. Every rank calls ``resume`` once and ``look`` after each step; both talk to the other ranks.
    """

    def __init__(self, folder: Path, every_s: float, run: str, say: Callable[[str], None]):
        self._folder, self._every_s, self._run, self._say = folder, every_s, run, say
        self._known: list[int] = []  # rank 0: the steps of the checkpoints that it keeps, the newest first
        self._stop = threading.Event()
        self.cost = {"saved": 0, "seconds": 0.0, "bytes": 0}
        self._left = self._steps = 1  # until the ranks agree again, and in all since they did
        self._saved_at = self._looked_at = time.monotonic()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: self.stop())

    def stop(self) -> None:
        """Have all ranks save and leave soon."""
        self._stop.set()

    def resume(self, session: Session) -> None:
        """Take the newest checkpoint of this run that every rank can read, if there is one."""
        found = self._steps_there() if session.comm.rank == 0 else []
        while step := _of_rank_0(session, found[0] if found else 0):
            state = self._read(step, session.comm.rank)
            if _all(session, state is not None):
                session.load_state_dict(state)
                self._known = found
                if session.comm.rank == 0:
                    self._say(f"goes on after step {session.done}")
                return
            found = found[1:]

    def look(self, session: Session) -> None:
        """Save if it is time to. Raise ``Stopped``, after that, if a rank was asked to end."""
        self._left -= 1
        if self._left:
            return
        now, first = time.monotonic(), session.comm.rank == 0
        due = first and now - self._saved_at >= self._every_s
        steps = max(1, round(self._steps * POLL_INTERVAL_S / max(now - self._looked_at, 1e-9)))
        said = torch.tensor([self._stop.is_set(), due, steps * first], dtype=torch.float32, device=session.comm.device)
        stop, due, steps = session.comm.allreduce(said).tolist()
        saved = (stop or due) and self._save(session)
        if stop:
            after = "to go on from there" if saved else "with no checkpoint of it"
            raise Stopped(f"stopped after step {session.done}, {after}")
        self._left = self._steps = int(steps)
        self._looked_at = time.monotonic()

    def _save(self, session: Session) -> bool:
        """Whether there is a checkpoint of where the session is now. Nothing is left of one that not all ranks could
        write: it would keep a full disk full."""
        begun, path = time.monotonic(), self._folder / str(session.done) / f"rank{session.comm.rank}"
        memory = io.BytesIO()
        torch.save(session.state_dict(), memory)
        content = memory.getvalue()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _head(self._run.encode(), content) + b"\n" + content, durable=True)
            written = True
        except OSError as error:
            self._say(f"no checkpoint of step {session.done}: {error.strerror}")
            written = False
        whole = _all(session, written)
        if session.comm.rank == 0:
            self._keep(session.done, whole)
        self._saved_at = time.monotonic()
        seconds = self.cost["seconds"] + self._saved_at - begun
        self.cost = {"saved": self.cost["saved"] + whole, "seconds": seconds, "bytes": len(content)}
        return whole

    def _keep(self, step: int, whole: bool) -> None:
        """Take away the checkpoints that the one of this step replaces, or itself if it is not whole."""
        if not whole:
            shutil.rmtree(self._folder / str(step), ignore_errors=True)
            return
        self._known = [step, *self._known][:KEPT]
        for other in self._steps_there():
            if other not in self._known:
                shutil.rmtree(self._folder / str(other), ignore_errors=True)

    def _steps_there(self) -> list[int]:
        """Of which steps there are files, the newest first."""
        with suppress(OSError):
            return sorted((int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()), reverse=True)
        return []

    def _read(self, step: int, rank: int) -> dict | None:
        """The state of a rank, or None if there is none of this run, or if the file is not what was written."""
        try:
            head, _, content = (self._folder / str(step) / f"rank{rank}").read_bytes().partition(b"\n")
        except OSError:
            return None
        run = head.partition(b" ")[2]
        if head != _head(run, content):
            self._say(f"the checkpoint of step {step} is damaged, rank {rank}")
            return None
        if run != self._run.encode():
            return None
        return torch.load(io.BytesIO(content), map_location=_to_own, weights_only=True)


def identity(spec: RunSpec) -> str:
    """What decides a run's numbers, as a digest: its spec, the statements that it executes, and torch."""
    parts = [spec.to_json(), *fingerprint.fingerprints(fingerprint.behind_run(spec)), torch.__version__]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _head(run: bytes, content: bytes) -> bytes:
    """The first line of a file."""
    return b"%08x %s" % (zlib.crc32(run + content), run)


def _to_own(storage: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    """What was saved from a GPU goes to this rank's own, which may have another number."""
    return storage.cuda() if device.startswith("cuda") else storage


def _all(session: Session, yes: bool) -> bool:
    """Whether all ranks say yes."""
    every = session.comm.allreduce(torch.tensor([float(yes)], device=session.comm.device))
    return int(every) == session.comm.world_size


def _of_rank_0(session: Session, step: int) -> int:
    """The step that rank 0 names."""
    named = torch.tensor([step if session.comm.rank == 0 else -1], device=session.comm.device)
    return int(session.comm.start_max(named).wait())
