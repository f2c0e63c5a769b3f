"""Checkpoints: all that an accuracy run needs to go on, bit for bit, after it was stopped anywhere.

A checkpoint is a folder named after its step, with a file for each rank. It counts as soon as rank 0 has entered it in
the list ``WHOLE``, which it does when all ranks have written theirs; the two newest are kept.
"""

import hashlib
import io
import json
import os
import shutil
import signal
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from harness import code
from harness.spec import RunSpec
from harness.training.session import Session

WHOLE = "whole.json"  # the newest first: step, and which run it is of
KEPT = 2
LOOK_S = 1.0  # about how often the ranks agree on whether to save


class Stopped(SystemExit):
    """The run was asked to end, and has left a checkpoint."""


class Checkpoints:
    """Saves a session in ``folder`` every ``every_s``, and when the process gets SIGTERM.

    ``run``: whose checkpoints they are; ``say``: tells a person; ``cost``: of those of this rank and sitting, bytes
    of the last one. Every rank calls ``resume`` once and ``look`` after each step; both talk to the other ranks.
    """

    def __init__(self, folder: Path, every_s: float, run: str, say: Callable[[str], None]):
        self._folder, self._every_s, self._run, self._say = folder, every_s, run, say
        self._known: list[dict] = []  # checkpoints that are sound, the newest first
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
        entries = self._whole()
        for place, entry in enumerate(entries):
            state = self._read(entry["step"], session.comm.rank) if entry["run"] == self._run else None
            if _all(session, state is not None):
                session.load_state_dict(state)
                self._known = entries[place:]
                if session.comm.rank == 0:
                    self._say(f"goes on after step {session.done}")
                return

    def look(self, session: Session) -> None:
        """Save if it is time to. Raise ``Stopped``, after that, if a rank was asked to end."""
        self._left -= 1
        if self._left:
            return
        now, first = time.monotonic(), session.comm.rank == 0
        due = first and now - self._saved_at >= self._every_s
        steps = max(1, round(self._steps * LOOK_S / max(now - self._looked_at, 1e-9)))
        said = torch.tensor([self._stop.is_set(), due, steps * first], dtype=torch.float32, device=session.comm.device)
        stop, due, steps = session.comm.allreduce(said).tolist()
        if stop or due:
            self._save(session)
        if stop:
            raise Stopped(f"stopped after step {session.done}, to go on from there")
        self._left = self._steps = int(steps)
        self._looked_at = time.monotonic()

    def _save(self, session: Session) -> None:
        begun, path = time.monotonic(), self._folder / str(session.done) / f"rank{session.comm.rank}"
        memory = io.BytesIO()
        torch.save(session.state_dict(), memory)
        content = memory.getvalue()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, b"%08x\n" % zlib.crc32(content) + content)
            written = True
        except OSError as error:
            self._say(f"no checkpoint of step {session.done}: {error.strerror}")
            written = False
        if _all(session, written) and session.comm.rank == 0:
            self._enter(session.done)
        self._saved_at = time.monotonic()
        seconds = self.cost["seconds"] + self._saved_at - begun
        self.cost = {"saved": self.cost["saved"] + 1, "seconds": seconds, "bytes": len(content)}

    def _enter(self, step: int) -> None:
        """Have the checkpoint count, and those before the last one no longer."""
        self._known = [{"step": step, "run": self._run}, *self._known][:KEPT]
        with suppress(OSError):
            _replace(self._folder / WHOLE, json.dumps(self._known).encode())
            for other in self._folder.iterdir():
                if other.is_dir() and other.name not in {str(entry["step"]) for entry in self._known}:
                    shutil.rmtree(other)

    def _whole(self) -> list[dict]:
        try:
            return json.loads((self._folder / WHOLE).read_text())
        except (OSError, ValueError):
            return []

    def _read(self, step: int, rank: int) -> dict | None:
        """The state of a rank, or None if the file is not what was written."""
        try:
            digest, _, content = (self._folder / str(step) / f"rank{rank}").read_bytes().partition(b"\n")
        except OSError:
            return None
        if digest != b"%08x" % zlib.crc32(content):
            self._say(f"the checkpoint of step {step} is damaged, rank {rank}")
            return None
        return torch.load(io.BytesIO(content), map_location=_to_own, weights_only=True)


def identity(spec: RunSpec) -> str:
    """What decides a run's numbers, as a digest: its spec, the statements that it executes, and torch."""
    parts = [spec.to_json(), *code.fingerprints(code.behind_run(spec)), torch.__version__]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _to_own(storage: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    """What was saved from a GPU goes to this rank's own, which may have another number."""
    return storage.cuda() if device.startswith("cuda") else storage


def _all(session: Session, yes: bool) -> bool:
    """Whether all ranks say yes."""
    every = session.comm.allreduce(torch.tensor([float(yes)], device=session.comm.device))
    return int(every) == session.comm.world_size


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new one, whenever the machine stops."""
    fresh = path.with_suffix(".tmp")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # half a checkpoint would keep a full disk full
        raise
