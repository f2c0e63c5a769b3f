"""Starts the processes of one run, watches them, and brings the results home, whole or not at all. No torch."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from harness.launch import processes, progress
from harness.launch.liveness import BEAT_EVERY_S, Ranks
from harness.spec import Place, RunSpec

SAY_EVERY_S = 10
RUN = [sys.executable, "-m", "harness.training.run"]


def launch(spec: RunSpec, place: Place, folder: Path, log: Path, program: list[str] = RUN) -> int:
    """Run ``spec``; on success its files lie in ``folder``, on failure none do. Return the status.

    ``program`` is started on every rank, with the folder that it reads and writes as its last argument.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "spec.json").write_text(spec.to_json())
    (partial / "place.json").write_text(place.to_json())
    say = Voice(spec, folder)
    process = None
    try:
        ranks = Ranks(partial, spec.processes)
        process = processes.start(spec, [*program, str(partial)], log)
        say("starting")
        trouble = watch(process, ranks, place, say)
        if trouble:
            say(f"{trouble}, stopped")
            return 1
        if process.returncode:
            say(f"failed; more in {log}:\n{_end(ranks.error() or log.read_text(errors='replace'))}")
            return process.returncode
        say(f"done in {progress.clock(bring_home(partial, folder, say.spent_s()))}")
        return 0
    finally:
        if process:
            processes.stop(process)
        shutil.rmtree(partial, ignore_errors=True)


class Voice:
    """Tells a person about one run, and about the workflow it belongs to."""

    def __init__(self, spec: RunSpec, folder: Path):
        self._title, self._folder, self._begun = spec.title(), folder, time.monotonic()

    def spent_s(self) -> float:
        return time.monotonic() - self._begun

    def __call__(self, what: str) -> None:
        with suppress(OSError):  # nobody listens any more
            whole = progress.whole(self._folder, self.spent_s())
            print(f"{whole}{self._title}: {what}", file=sys.stderr, flush=True)


def watch(process: subprocess.Popen, ranks: Ranks, place: Place, say: Voice) -> str:
    """Wait for the processes' end and say how far they are; return why they must be stopped before, or nothing."""
    try:
        above = [psutil.Process(pid) for pid in {os.getppid(), place.workflow} - {0}]
    except psutil.NoSuchProcess:
        return "the workflow has ended"
    first, said = None, 0.0
    while process.poll() is None:
        ranks.beat()
        if not all(map(processes.lives, above)):
            return "the workflow has ended"
        if hung := ranks.hung(place.hung_after_s):
            return hung
        now, state = say.spent_s(), ranks.slowest()
        first = first or (state and (now, state[0]))
        if state and now - said >= SAY_EVERY_S and state[0] > first[1]:
            said = now
            left_s = (now - first[0]) * (state[1] - state[0]) / (state[0] - first[1])
            say(f"{state[0]}/{state[1]}, {progress.clock(left_s)} left")
        _wait(process, BEAT_EVERY_S)
    return ""


def _wait(process: subprocess.Popen, seconds: float) -> None:
    """Until the process ends, but no longer than ``seconds``; few wake-ups, since timed runs share the cores."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)


def bring_home(partial: Path, folder: Path, wall_s: float) -> float:
    """Move the results to ``folder``, run.json last, which says that they are whole; return ``wall_s``."""
    run = json.loads((partial / "run.json").read_text()) | {"wall_s": round(wall_s, 1)}
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*partial.glob("*.csv"), *partial.glob("trace.json")]:
        path.replace(folder / path.name)
    (partial / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    (partial / "run.json").replace(folder / "run.json")
    return wall_s


def _end(text: str, lines: int = 20) -> str:
    return "\n".join(text.splitlines()[-lines:])
