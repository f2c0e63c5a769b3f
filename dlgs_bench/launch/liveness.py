"""Signs of life between the launcher and the ranks of a run: small files in the run's folder. No torch.

Each rank writes how far it is, and the launcher reads what all of them wrote. The launcher writes which launch this is
and a number that grows, and each rank watches them. Nobody compares the clocks of two machines or looks at another
machine's processes, so a file system that all share is enough. Files are overwritten in place, for which a disk that
has become full still has room.
"""

import errno
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NoReturn

import psutil

from dlgs_bench.errors import Ended

HEARTBEAT = "heartbeat"
END = "end"  # the launcher asks the ranks to end, as SIGTERM does where it can send one
ERROR = "error"
DIED = "died: "  # what another rank says of one that could say nothing, with its number
ENDED = "ended: "  # before a reason that one line tells
DYING_S = 0.5  # a process that was killed may take so long to be gone, after its connections are
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # what is wrong with a disk, and not with a program
LEAVE_AFTER_S = 30  # a rank leaves when the heartbeat has not changed for so long
REPORT_EVERY_S = 0.5
HEARTBEAT_INTERVAL_S = 1
WIDTH = 48  # of the text of a file that is overwritten


class Progress:
    """A rank's reports of how far it is; from its last call on, the file says the same within half a second.

    A thread of its own writes the file, so that a rank that hangs has reported the step at which it hangs.
    """

    def __init__(self, folder: Path, rank: int):
        self._folder, self._rank = folder, rank
        with suppress(OSError):
            _process_of(folder, rank).write_text(f"{socket.gethostname()} {os.getpid()}", encoding="utf-8")
        self._now: tuple[int, int] | None = None
        _in_background(self._write)

    def __call__(self, done: int, total: int) -> None:
        self._now = (done, total)

    def say(self, text: str) -> None:
        """Have the launcher tell a person."""
        with suppress(OSError), _said_by(self._folder, self._rank).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def _write(self) -> None:
        written = None
        while True:
            if (now := self._now) != written:
                with suppress(OSError):  # of a shared file system: tried again
                    _overwrite(_of_rank(self._folder, self._rank), json.dumps(now))
                    written = now
            time.sleep(REPORT_EVERY_S)


def as_rank(folder: Path, work: Callable[[Path], None], leave_after_s: float = LEAVE_AFTER_S) -> None:
    """Do ``work(folder)`` as one rank of the run in ``folder``; if it fails, leave at once with status 1.

    The process leaves too when the launcher's heartbeat has not changed for ``leave_after_s``, when the launcher has
    taken the folder away, or when another launch has it; and it gets SIGTERM when the launcher asks the ranks to end.
    The first rank to fail leaves its error in the folder, since the others fail in turn when it is gone. If it was
    killed, one of them says so in its place.
    """
    _in_background(lambda: _leave_with_launcher(folder, leave_after_s))
    try:
        work(folder)
    except SystemExit as ended:  # it was asked to
        print(ended, file=sys.stderr, flush=True)
        os._exit(1)
    except Exception as error:
        text = f"{ENDED}{error}" if isinstance(error, Ended) else traceback.format_exc()
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            text = f"{ENDED}{error.strerror}: {error.filename or folder}"
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)
        # Engines say with a RuntimeError that a connection broke.
        if isinstance(error, RuntimeError) and (dead := _dead(folder)) is not None:
            text = f"{DIED}{dead}"
        _leave(folder, text)


def _leave(folder: Path, error: str) -> NoReturn:
    """End this process, and have the launcher know why, unless another rank was first."""
    with suppress(OSError), (folder / ERROR).open("x", encoding="utf-8") as file:
        file.write(error)
    os._exit(1)  # a thread that waits for other ranks would keep this process, and they wait for it


def _dead(folder: Path) -> int | None:
    """A rank on this machine whose process is gone, if there is one soon."""
    processes = {int(path.stem.removeprefix("rank")): _words(path) for path in folder.glob("rank*.pid")}
    here = [socket.gethostname()]
    ours = {rank: int(words[1]) for rank, words in sorted(processes.items()) if words[:1] == here and words[1:]}
    end = time.monotonic() + DYING_S
    while time.monotonic() < end:
        for rank, pid in ours.items():
            if not _lives(pid):
                return rank
        time.sleep(DYING_S / 10)
    return None


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _leave_with_launcher(folder: Path, after_s: float) -> None:
    """Wait until this process should no longer be there, and end it.

    Looks without news are counted, not seconds: a process that was itself stopped for long must not leave for that.
    """
    look_s = min(HEARTBEAT_INTERVAL_S, after_s / 5)
    known, silent_s, asked = [], 0.0, False
    while silent_s < after_s:
        beat = _words(folder / HEARTBEAT)
        if known and (not folder.exists() or beat[:1] not in ([], known[:1])):
            os._exit(1)  # nobody waits for this launch any more
        silent_s = 0.0 if beat not in ([], known) else silent_s + look_s
        known = beat or known
        if not asked and (folder / END).exists():
            asked = True
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(look_s)
    why = f"the launcher gave no sign of life for {after_s:g} s: it was stopped, or the disk does not answer"
    with suppress(OSError):
        print(why, file=sys.stderr, flush=True)
    _leave(folder, f"{ENDED}{why}")


class Heartbeat:
    """The launcher's sign of life, while the ``with`` statement lasts, from a thread of its own: the launcher may have
    to wait, for a terminal that shows nothing more for one.

    ``OSError`` if there can be none in ``folder``.
    """

    def __init__(self, folder: Path):
        self._file, self._launch, self._over = folder / HEARTBEAT, secrets.token_hex(8), threading.Event()
        self._say(0)

    def __enter__(self) -> None:
        self._thread = _in_background(self._beat)

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join(HEARTBEAT_INTERVAL_S)  # it might still write, into a folder that is being taken away

    def _beat(self) -> None:
        for number in count(1):
            if self._over.wait(HEARTBEAT_INTERVAL_S):
                return
            with suppress(OSError):
                self._say(number)

    def _say(self, number: int) -> None:
        _overwrite(self._file, f"{self._launch} {number}")


class Ranks:
    """The launcher's side: knows how far each rank is and since when."""

    def __init__(self, folder: Path, ranks: int):
        self._folder = folder
        self._done: list[tuple[int, int] | None] = [None] * ranks
        self._heard = [0] * ranks  # lines
        self._changed = [time.monotonic()] * ranks  # a rank that has not reported yet counts from here

    def look(self) -> None:
        """Learn how far the ranks are by now."""
        for rank, known in enumerate(self._done):
            with suppress(ValueError):  # half of a text: read again
                found = tuple(json.loads(_text(_of_rank(self._folder, rank)) or "[]"))
                if found and found != known:
                    self._done[rank], self._changed[rank] = found, time.monotonic()

    def ask_to_end(self) -> None:
        """Have the ranks do what they do on SIGTERM."""
        with suppress(OSError):
            (self._folder / END).touch()

    def news(self) -> list[str]:
        """What ranks have said since the last time."""
        found = []
        for rank, known in enumerate(self._heard):
            lines = (_text(_said_by(self._folder, rank)) or "").splitlines()
            found += lines[known:]
            self._heard[rank] = len(lines)
        return found

    def error(self) -> str | None:
        """What the first rank to fail said; None if none has."""
        return _text(self._folder / ERROR)

    def died(self) -> int | None:
        """The rank that died without a word, if the run failed for that."""
        text = self.error() or ""
        return int(text.removeprefix(DIED)) if text.startswith(DIED) else None

    def location(self, rank: int) -> str:
        """How far a rank is, in words."""
        done = self._done[rank]
        return "last at step {} of {}".format(*done) if done else "not one step since the launch"

    def ended(self) -> str:
        """Why the run could not go on, if a rank said so in a line."""
        text = self.error() or ""
        return text.removeprefix(ENDED) if text.startswith(ENDED) else ""

    def slowest(self) -> tuple[int, int] | None:
        """(done, total) of the rank that is furthest behind; None before all have reported."""
        if None in self._done:
            return None
        return min(self._done, key=lambda state: state[0] / state[1])

    def hung(self, after_s: float) -> str:
        """In one line the ranks that have reported no progress for ``after_s``, and where; empty if none has.

        One rank that hangs soon blocks the others, so those that fell silent shortly after it are named too.
        """
        now = time.monotonic()
        silent_s = [now - changed for changed in self._changed]
        if max(silent_s) < after_s:
            return ""
        return "; ".join(
            f"rank {rank} reported no progress for {after_s:g} s, {self.location(rank)}"
            for rank, seconds in enumerate(silent_s)
            if seconds >= 0.9 * after_s
        )


def _of_rank(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def _process_of(folder: Path, rank: int) -> Path:
    """Where a rank says on which machine and with which number its process runs."""
    return _of_rank(folder, rank).with_suffix(".pid")


def _said_by(folder: Path, rank: int) -> Path:
    """Where a rank leaves lines for a person."""
    return _of_rank(folder, rank).with_suffix(".said")


def _overwrite(path: Path, text: str) -> None:
    """Write a file in place; readers may see a part of the old text and of the new one."""
    with path.open("r+" if path.exists() else "w", encoding="utf-8") as file:
        file.write(f"{text:{WIDTH}}")


def _words(path: Path) -> list[str]:
    return (_text(path) or "").split()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
