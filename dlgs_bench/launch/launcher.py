"""Starts the processes of one run, watches them, and brings the results home, whole or not at all. No torch."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from dlgs_bench import checksums
from dlgs_bench.engines import ENGINES
from dlgs_bench.launch import gpus, processes, progress
from dlgs_bench.launch.disturbance import OtherWork, disturbed
from dlgs_bench.launch.liveness import HEARTBEAT_INTERVAL_S, Heartbeat, Ranks
from dlgs_bench.launch.lock import locked
from dlgs_bench.launch.nodes import Refused
from dlgs_bench.spec import LaunchSettings, RunSpec

SAY_EVERY_S = 10
OBSERVED = ("iterations.csv", "layers.csv")  # tables of which every launch makes other rows
LEAST_ROOM = 2**16  # bytes of a disk
SAVING_S = 30  # an accuracy run that was asked to end may take so long: it ends its step, evaluates and saves
MOST_AGAIN = 2  # disturbed launches of a run that are repeated
ALONE = "the workflow has ended"
RUN = [sys.executable, "-m", "dlgs_bench.training.run"]


class RunLogger:
    """Tells a person about one run, and about the workflow it belongs to."""

    def __init__(self, spec: RunSpec, folder: Path):
        self._title, self._folder, self._begun = spec.title(), folder, time.monotonic()

    def spent_s(self) -> float:
        return time.monotonic() - self._begun

    def __call__(self, what: str) -> None:
        with suppress(OSError):  # nobody listens any more
            whole = progress.whole(self._folder, self.spent_s())
            print(f"{whole}{self._title}: {what}", file=sys.stderr, flush=True)


def launch(
    spec: RunSpec,
    settings: LaunchSettings,
    folder: Path,
    log: Path,
    program: list[str] = RUN,
    forward_s: float | None = None,
) -> int:
    """Run ``spec``; on success its files lie in ``folder``, on failure none do. Return the status. An accuracy run goes
    on from the checkpoint that it left the last time, if it left one.

    ``program`` is started on every rank, with the folder that it reads and writes as its last argument. A
    measurement that something disturbed is repeated, and marked if it is disturbed once more; ``forward_s``: a
    forward pass as calibrated.
    """
    say = RunLogger(spec, folder)
    try:
        with _alone(folder):
            return _launch(spec, settings, folder, log, program, forward_s, say)
    except Refused as why:
        say(f"{why}")
    except OSError as error:
        say(f"{error.strerror}: {error.filename or folder}")
    return 1


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Have a run to oneself: the launcher of a workflow that was killed may still have its ranks save. Refused if the
    other one goes on."""
    lock, end = folder.with_name(f".{folder.name}.lock"), time.monotonic() + 2 * SAVING_S
    lock.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < end:
        with lock.open("w", encoding="utf-8") as file:
            if locked(file) and os.fstat(file.fileno()).st_nlink:  # the one before takes its lock away
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
        time.sleep(0.2)
    raise Refused(f"another process makes {folder}: wait for it, or end it")


def _launch(
    spec: RunSpec,
    settings: LaunchSettings,
    folder: Path,
    log: Path,
    program: list[str],
    forward_s: float | None,
    say: RunLogger,
) -> int:
    partial, checkpoints = (folder.with_name(folder.name + end) for end in (".partial", ".checkpoints"))
    shutil.rmtree(partial, ignore_errors=True)
    settings = replace(settings, checkpoints=str(checkpoints.resolve()))
    try:
        with gpus.taken(gpus.wanted(spec, settings)) as own:
            kept, again = [], MOST_AGAIN
            while len(kept) < spec.measurement.launches:
                part, others = partial / f"launch{len(kept) + 1}", OtherWork()
                share_s = _share_s(spec, say.spent_s(), len(kept))
                status = once(spec, replace(settings, share_s=share_s), part, log, program, own, say)
                if status:
                    return status
                trouble = _trouble(spec, settings, others.share(), part, forward_s)
                if trouble and again:
                    again -= 1
                    say(f"{trouble}: measured once more")
                    shutil.rmtree(part)
                else:
                    kept.append((part, trouble))
        bring_home(kept, folder, say.spent_s(), len(kept) + MOST_AGAIN - again)
        shutil.rmtree(checkpoints, ignore_errors=True)
        say(f"done in {progress.clock(say.spent_s())}")
        return 0
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _share_s(spec: RunSpec, spent_s: float, launched: int) -> float:
    """How long the next launch may take: what is left of the run's budget, shared among the launches that are left."""
    left_s = spec.measurement.budget_s - spent_s
    return max(0.0, left_s / (spec.measurement.launches - launched))


def _trouble(spec: RunSpec, settings: LaunchSettings, others: float, part: Path, forward_s: float | None) -> str:
    """Why a launch should be repeated, or nothing, as with accuracy runs, which measure no time.

    The work of others cannot be told from that of ranks which another process than this one started. Ranks that share
    cores slow each other's forward passes, which were calibrated without that: only the work of others counts then.
    """
    if spec.kind == "accuracy":
        return ""
    local = settings.by == "local"
    crowded = local and spec.processes * spec.cluster.threads > len(os.sched_getaffinity(0))
    return disturbed(others if local else 0.0, part / "iterations.csv", None if crowded else forward_s)


def once(
    spec: RunSpec, settings: LaunchSettings, part: Path, log: Path, program: list[str], own: list[str], say: RunLogger
) -> int:
    """Start the processes, which leave their results in the new folder ``part``, and watch them to their end; ``own``:
    the GPUs that they use."""
    part.mkdir(parents=True)
    (part / "spec.json").write_text(spec.to_json(), encoding="utf-8")
    (part / "launch_settings.json").write_text(settings.to_json(), encoding="utf-8")
    process, trouble, ranks = None, "", Ranks(part, spec.processes)
    with Heartbeat(part):
        try:
            process = processes.start(spec, settings, [*program, str(part)], log, own)
            say(f"starting, at most about {progress.clock(settings.share_s)}" if settings.share_s else "starting")
            trouble = watch(process, ranks, settings, say)
            for news in ranks.news():
                say(news)
            if trouble:
                say(f"{trouble}, stopped")
                return 1
            if process.returncode:
                say(_failure(spec, ranks, part, log))
            return process.returncode
        finally:
            if process:
                if trouble in ("", ALONE):  # ranks of which one hangs save nothing together
                    _end_politely(spec, settings, process, ranks)
                processes.stop(process)


def _failure(spec: RunSpec, ranks: Ranks, part: Path, log: Path) -> str:
    """Why the processes ended with an error, in a line if there is one that says it."""
    if (dead := _dead(spec, ranks, log)) is not None:
        return f"rank {dead}, {_role(spec, dead)}, has died, {ranks.location(dead)}; more in {log}"
    if why := ranks.ended():
        return f"{why}; more in {log}"
    if shutil.disk_usage(part).free < LEAST_ROOM:  # nobody could write what was wrong
        return f"no space is left on the disk of {part.parent.parent}"
    return f"failed; more in {log}:\n{_end(ranks.error() or log.read_text(encoding='utf-8', errors='replace'))}"


def _end_politely(spec: RunSpec, settings: LaunchSettings, process: subprocess.Popen, ranks: Ranks) -> None:
    """Ask ranks to end that are no children of this process, and those that have steps to save. They alone are asked:
    training cannot go on without the processes that read its data."""
    ranks.look()
    training = spec.kind == "accuracy" and ranks.slowest() is not None
    if training or settings.by != "local":
        ranks.ask_to_end()
        _wait(process, SAVING_S if training else processes.TERM_GRACE_S)


def _dead(spec: RunSpec, ranks: Ranks, log: Path) -> int | None:
    """The rank that died without a word, if the run failed for that: other ranks say so, or the engine's launcher."""
    if ranks.error() is not None:
        return ranks.died()
    found = re.search(ENGINES[spec.cluster.engine].killed, log.read_text(encoding="utf-8", errors="replace"))
    return int(found[1]) if found else None


def _role(spec: RunSpec, rank: int) -> str:
    if rank < spec.cluster.workers:
        return "a worker"
    return "the server" if spec.topology.servers else "an aggregator"


def watch(process: subprocess.Popen, ranks: Ranks, settings: LaunchSettings, say: RunLogger) -> str:
    """Wait for the processes' end and say how far they are; return why they must be stopped before, or nothing."""
    try:
        above = [psutil.Process(pid) for pid in {os.getppid(), settings.workflow} - {0}]
    except psutil.NoSuchProcess:
        return ALONE
    first, said = None, 0.0
    while process.poll() is None:
        ranks.look()
        for news in ranks.news():
            say(news)
        if not all(map(processes.lives, above)):
            return ALONE
        if hung := ranks.hung(settings.hang_timeout_s):
            return hung
        now, state = say.spent_s(), ranks.slowest()
        first = first or (state and (now, state[0]))
        if state and now - said >= SAY_EVERY_S and state[0] > first[1]:
            said = now
            left_s = (now - first[0]) * (state[1] - state[0]) / (state[0] - first[1])
            say(f"{state[0]}/{state[1]}, {progress.clock(left_s)} left")
        _wait(process, HEARTBEAT_INTERVAL_S)
    return ""


def _wait(process: subprocess.Popen, seconds: float) -> None:
    """Until the process ends, but no longer than ``seconds``; few wake-ups, since timed runs share the cores."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)


def bring_home(launches: list[tuple[Path, str]], folder: Path, wall_s: float, launched: int) -> None:
    """Move the results of the launches (folder, what disturbed it) to ``folder``, run.json last, which says that
    they are whole, and by checksums of each table and of itself what they are.

    Of several launches the tables ``OBSERVED`` hold all rows, with the number of their launch; the other tables are
    the last one's. ``launched``: how many there were, with those that were repeated.
    """
    last, _ = launches[-1]
    for table in OBSERVED if len(launches) > 1 else ():
        if (last / table).exists():
            texts = [(part / table).read_text(encoding="utf-8").splitlines() for part, _ in launches]
            rows = [f"{number},{row}" for number, text in enumerate(texts, start=1) for row in text[1:]]
            (last / table).write_text("\n".join([f"launch,{texts[0][0]}", *rows, ""]), encoding="utf-8")
    about = {"wall_s": round(wall_s, 1), "disturbed": "; ".join(trouble for _, trouble in launches if trouble)}
    about["launched"] = launched
    about["files"] = {path.name: checksums.of(path) for path in sorted(last.glob("*.csv"))}
    run = checksums.signed(json.loads((last / "run.json").read_text(encoding="utf-8")) | about)
    (last / "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*last.glob("*.csv"), *last.glob("trace.json"), last / "run.json"]:
        _to_disk(path)
        path.replace(folder / path.name)
    _to_disk(folder)  # before the checkpoints go: the machine may stop at any time


def _to_disk(path: Path) -> None:
    """Wait until the file, or the folder's list of files, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _end(text: str, lines: int = 20) -> str:
    return "\n".join(text.splitlines()[-lines:])
