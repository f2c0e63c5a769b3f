"""Heartbeats between the launcher and the ranks of a run, in small files in the run's folder. No torch.

Each rank writes its progress, and the launcher reads it. The launcher writes an identifier of the launch and a number
that increases, and each rank reads them. This needs only a shared file system: clocks of two machines are not compared,
and processes of other machines are not examined. Files are overwritten in place, so heartbeats work on a full disk.
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
END = "end"  # the launcher creates this file to ask ranks to end, also on machines to which it cannot send SIGTERM
ERROR = "error"
DIED = "died: "  # prefix of an error that another rank reports for a rank that was killed
ENDED = "ended: "  # prefix of an error of one line
DEATH_GRACE_S = 0.5  # a killed process may exist for this time after its connections are closed
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors of the disk, not of the program
LEAVE_AFTER_S = 30  # a rank leaves when the heartbeat has not changed for this time
REPORT_INTERVAL_S = 0.5
HEARTBEAT_INTERVAL_S = 1
PAUSE_S = 60  # a launcher that did not poll for longer was paused, and the ranks with it
WIDTH = 48  # characters of a file that is overwritten


class Progress:
    """Reports the progress of a rank. Call it after each step; the file is updated within ``REPORT_INTERVAL_S``.

    A thread writes the file, so that a rank that hangs has reported the step at which it hangs.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        with suppress(OSError):
            _process_of(folder, rank).write_text(f"{socket.gethostname()} {os.getpid()}", encoding="utf-8")
        self._now: tuple[int, int] | None = None
        _in_background(self._write)

    def __call__(self, done: int, total: int) -> None:
        self._now = (done, total)

    def say(self, text: str) -> None:
        """Send a message to the launcher, which prints it."""
        with suppress(OSError), _messages_of(self._folder, self._rank).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def _write(self) -> None:
        written = None
        while True:
            if (now := self._now) != written:
                with suppress(OSError):  # such as an error of a shared file system; it is retried
                    _overwrite(_progress_of(self._folder, self._rank), json.dumps(now))
                    written = now
            time.sleep(REPORT_INTERVAL_S)


def run_as_rank(folder: Path, work: Callable[[Path], None], leave_after_s: float = LEAVE_AFTER_S) -> None:
    """Run ``work(folder)`` as one rank of the run in ``folder``; if it fails, exit immediately with status 1.

    The process also exits if the launcher's heartbeat has not changed for ``leave_after_s``, if the launcher has
    removed the folder, or if another launch uses it. It gets SIGTERM when the launcher asks the ranks to end. The first
    rank that fails writes its error to the folder; the errors of other ranks only follow from it. If a rank was killed,
    another rank reports it.
    """
    _in_background(lambda: _leave_with_launcher(folder, leave_after_s))
    try:
        work(folder)
    except SystemExit as ended:  # the rank was asked to end
        with suppress(OSError):
            print(ended, file=sys.stderr, flush=True)
        os._exit(1)
    except Exception as error:
        text = f"{ENDED}{error}" if isinstance(error, Ended) else traceback.format_exc()
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            text = f"{ENDED}{error.strerror}: {error.filename or folder}"
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)
        # Engines raise a RuntimeError if a connection is closed.
        if isinstance(error, RuntimeError) and (dead := _dead(folder)) is not None:
            text = f"{DIED}{dead}"
        _leave(folder, text)


def _leave(folder: Path, error: str) -> NoReturn:
    """Write the error for the launcher, unless another rank has written one, and end this process."""
    with suppress(OSError), (folder / ERROR).open("x", encoding="utf-8") as file:
        file.write(error)
    os._exit(1)  # a normal exit would wait for threads that wait for other ranks, which wait for this rank


def _dead(folder: Path) -> int | None:
    """A rank on this machine whose process ends within ``DEATH_GRACE_S``, or has ended; None if there is none."""
    processes = {int(path.stem.removeprefix("rank")): _words(path) for path in folder.glob("rank*.pid")}
    here = [socket.gethostname()]
    local = {rank: int(words[1]) for rank, words in sorted(processes.items()) if words[:1] == here and words[1:]}
    end = time.monotonic() + DEATH_GRACE_S
    while time.monotonic() < end:
        for rank, pid in local.items():
            if not _lives(pid):
                return rank
        time.sleep(DEATH_GRACE_S / 10)
    return None


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _leave_with_launcher(folder: Path, after_s: float) -> None:
    """End this process when the launcher is gone, has been silent for ``after_s``, or has started another launch.

    Polls without a change are counted instead of seconds, so that a process that was suspended does not end for this.
    """
    poll_interval_s = min(HEARTBEAT_INTERVAL_S, after_s / 5)
    last: list[str] = []
    silent_s, asked = 0.0, False
    while silent_s < after_s:
        beat = _words(folder / HEARTBEAT)
        if last and (not folder.exists() or beat[:1] not in ([], last[:1])):
            os._exit(1)  # no launcher waits for this launch
        silent_s = 0.0 if beat not in ([], last) else silent_s + poll_interval_s
        last = beat or last
        if not asked and (folder / END).exists():
            asked = True
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(poll_interval_s)
    why = f"the launcher sent no heartbeat for {after_s:g} s: it was stopped, or the disk does not respond"
    with suppress(OSError):
        print(why, file=sys.stderr, flush=True)
    _leave(folder, f"{ENDED}{why}")


class Heartbeat:
    """Writes the launcher's heartbeat while the context is open.

    A thread writes it, because the launcher may block, for example if its terminal is stopped. OSError if ``folder``
    is not writable.
    """

    def __init__(self, folder: Path) -> None:
        self._file, self._launch, self._over = folder / HEARTBEAT, secrets.token_hex(8), threading.Event()
        self._say(0)

    def __enter__(self) -> None:
        self._thread = _in_background(self._beat)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(HEARTBEAT_INTERVAL_S)  # otherwise it could write to a folder that is being removed

    def _beat(self) -> None:
        for number in count(1):
            if self._over.wait(HEARTBEAT_INTERVAL_S):
                return
            with suppress(OSError):
                self._say(number)

    def _say(self, number: int) -> None:
        _overwrite(self._file, f"{self._launch} {number}")


class Ranks:
    """The launcher's view of the ranks: their progress, their messages, and the first error."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._done: list[tuple[int, int] | None] = [None] * ranks
        self._read = [0] * ranks  # lines of messages
        self._changed = [time.monotonic()] * ranks  # the time of the last progress, or of the start
        self._polled = time.monotonic()

    def poll(self) -> None:
        """Read the progress of all ranks. The time of a pause, as in a suspended job, does not count as silence."""
        now = time.monotonic()
        if now - self._polled > PAUSE_S:
            self._changed = [changed + now - self._polled for changed in self._changed]
        self._polled = now
        for rank, last in enumerate(self._done):
            with suppress(ValueError):  # the file was read while it was written; the next poll reads it again
                state = tuple(json.loads(_text(_progress_of(self._folder, rank)) or "[]"))
                if state and state != last:
                    self._done[rank], self._changed[rank] = state, time.monotonic()

    def ask_to_end(self) -> None:
        """Make the ranks do what they do on SIGTERM."""
        with suppress(OSError):
            (self._folder / END).touch()

    def new_messages(self) -> list[str]:
        """The messages of ranks since the last call."""
        messages = []
        for rank, read in enumerate(self._read):
            lines = (_text(_messages_of(self._folder, rank)) or "").splitlines()
            messages += lines[read:]
            self._read[rank] = len(lines)
        return messages

    def error(self) -> str | None:
        """The error of the first rank that failed; None if no rank has failed."""
        return _text(self._folder / ERROR)

    def died(self) -> int | None:
        """The rank that was killed, if this made the run fail."""
        text = self.error() or ""
        return int(text.removeprefix(DIED)) if text.startswith(DIED) else None

    def location(self, rank: int) -> str:
        """The progress of a rank, in words."""
        done = self._done[rank]
        return "last at step {} of {}".format(*done) if done else "not one step since the launch"

    def ended(self) -> str | None:
        """The reason why the run could not continue, if a rank gave one in one line; otherwise None."""
        text = self.error() or ""
        return text.removeprefix(ENDED) if text.startswith(ENDED) else None

    def slowest(self) -> tuple[int, int] | None:
        """(done, total) of the rank with the least progress; None until all ranks have reported."""
        if None in self._done:
            return None
        return min(self._done, key=lambda state: state[0] / state[1])

    def stalled(self, after_s: float) -> str | None:
        """One line that names the ranks without progress for ``after_s``, and their last step; None if all progress.

        A rank that hangs soon blocks the others. So ranks that stalled shortly after it are named, too.
        """
        now = time.monotonic()
        silent_s = [now - changed for changed in self._changed]
        if max(silent_s) < after_s:
            return None
        return "; ".join(
            f"rank {rank} reported no progress for {after_s:g} s, {self.location(rank)}"
            for rank, seconds in enumerate(silent_s)
            if seconds >= 0.9 * after_s
        )


def _progress_of(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def _process_of(folder: Path, rank: int) -> Path:
    """The file with a rank's host name and process id."""
    return folder / f"rank{rank}.pid"


def _messages_of(folder: Path, rank: int) -> Path:
    """The file with a rank's messages, which the launcher prints."""
    return folder / f"rank{rank}.said"


def _overwrite(path: Path, text: str) -> None:
    """Write a file in place; readers may see parts of the old text and of the new text."""
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
