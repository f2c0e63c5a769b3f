"""Starts the processes of one run, supervises them, and publishes the results, whole or not at all. No torch."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from dlgs_bench import checksums
from dlgs_bench.atomic_file import wait_for_disk, write_atomically
from dlgs_bench.engines import ENGINES
from dlgs_bench.file_lock import locked
from dlgs_bench.launch import gpus, processes, progress, supervise
from dlgs_bench.launch.disturbance import OtherWork, why_disturbed
from dlgs_bench.launch.liveness import HEARTBEAT_INTERVAL_S, Heartbeat, Ranks
from dlgs_bench.launch.nodes import Refused
from dlgs_bench.launch.processes import SAVE_GRACE_S
from dlgs_bench.spec import LaunchSettings, RunSpec

PROGRESS_INTERVAL_S = 10
OBSERVED = ("iterations.csv", "layers.csv")  # tables whose rows differ between launches
MIN_FREE_BYTES = 2**16  # with less space, the disk counts as full
MAX_RETRIES = 2  # of the disturbed launches of a run
SHORT_S = 45  # a launch of at most this length is repeated once, even if the budget is spent
WORKFLOW_GONE = "the workflow has ended"
RUN = [sys.executable, "-m", "dlgs_bench.training.run"]
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the signals that ask to stop


class RunLogger:
    """Prints messages about one run, with the progress of its workflow."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self._title, self._folder = spec.title(), folder
        self.begin()

    def begin(self) -> None:
        """Count the run's time from now on."""
        self._begun = time.monotonic()

    def spent_s(self) -> float:
        return time.monotonic() - self._begun

    def __call__(self, message: str, left_s: float | None = None, whole_s: float | None = None) -> None:
        with suppress(OSError):  # the terminal is closed
            prefix = progress.whole(self._folder, self.spent_s(), left_s, whole_s)
            print(f"{prefix}{self._title}: {message}", file=sys.stderr, flush=True)


def launch(
    spec: RunSpec,
    settings: LaunchSettings,
    folder: Path,
    log: Path,
    program: list[str] = RUN,
    forward_s: float | None = None,
) -> int:
    """Run ``spec`` and return the exit status. On success, ``folder`` holds its files; on failure, it holds none.

    ``program`` is started on every rank. Its last argument is the folder that it reads and writes. An accuracy run
    continues from its last checkpoint, if there is one. A disturbed measurement is repeated; if it remains disturbed,
    it is marked. ``forward_s``: the calibrated time of a forward pass.
    """
    say = RunLogger(spec, folder)
    try:
        with _run_lock(folder):
            return _launch(spec, settings, folder, log, program, forward_s, say)
    except Refused as why:
        say(f"{why}")
    except OSError as error:
        say(f"{error.strerror}: {error.filename or folder}")
    return 1


@contextmanager
def _run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run. Refused if another process does not release it.

    The launcher of a workflow that was killed may hold it for a while, until its ranks have saved.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    end = time.monotonic() + 2 * SAVE_GRACE_S
    lock.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < end:
        with lock.open("w", encoding="utf-8") as file:
            # A file without a link was removed by the last holder: another process may create a new one.
            if locked(file) and os.fstat(file.fileno()).st_nlink:
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
        time.sleep(0.2)
    raise Refused(f"{folder}: another process is writing it; wait for it, or stop it")


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
            say.begin()  # waiting for another process or for GPUs does not count
            launches: list[tuple[Path, str | None]] = []
            retries = 0
            while len(launches) < spec.measurement.launches:
                part = partial / f"launch{len(launches) + 1}"
                others, begun_s = OtherWork(), say.spent_s()
                launch_budget_s = _launch_budget_s(spec, say.spent_s(), len(launches))
                status = once(spec, replace(settings, launch_budget_s=launch_budget_s), part, log, program, own, say)
                if status:
                    return status
                trouble = _trouble(spec, settings, others.fraction(), part, forward_s)
                if trouble and _may_repeat(spec, retries, say.spent_s() - begun_s, say.spent_s()):
                    retries += 1
                    say(f"{trouble}: measured once more")
                    shutil.rmtree(part)
                else:
                    if trouble:
                        say(f"{trouble}: kept, and marked as disturbed")
                    launches.append((part, trouble))
        with _too_late_to_stop():
            publish_results(launches, folder, say.spent_s(), len(launches) + retries)
            shutil.rmtree(checkpoints, ignore_errors=True)
        say(f"done in {progress.clock(say.spent_s())}")
        return 0
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _launch_budget_s(spec: RunSpec, spent_s: float, launched: int) -> float | None:
    """The time of the next launch: the rest of the run's budget, divided by the number of remaining launches.

    None without a budget. 0: the earlier launches have spent it.
    """
    if not spec.measurement.budget_s:
        return None
    left_s = spec.measurement.budget_s - spent_s
    return max(0.0, left_s / (spec.measurement.launches - launched))


def _may_repeat(spec: RunSpec, retries: int, launch_s: float, spent_s: float) -> bool:
    """Whether a disturbed launch of ``launch_s`` seconds is repeated. ``spent_s``: the seconds of the run until now."""
    budget_s = spec.measurement.budget_s
    fits = not budget_s or spent_s + launch_s <= budget_s
    return retries < MAX_RETRIES and (fits or (not retries and launch_s <= SHORT_S))


def _trouble(spec: RunSpec, settings: LaunchSettings, others: float, part: Path, forward_s: float | None) -> str | None:
    """The reason why a launch should be repeated, or None; always None for a run that learns and measures no time.

    Other work is only measured if this process has started the ranks. Otherwise the ranks count as other work. Ranks
    that share cores slow each other's forward passes. These are not compared with the calibration, which had no such
    contention.
    """
    if not spec.timed:
        return None
    local = settings.by == "local"
    crowded = local and spec.processes * spec.cluster.threads > len(os.sched_getaffinity(0))
    return why_disturbed(others if local else 0.0, part / "iterations.csv", None if crowded else forward_s)


def once(
    spec: RunSpec, settings: LaunchSettings, part: Path, log: Path, program: list[str], own: list[str], say: RunLogger
) -> int:
    """Start the processes, supervise them until they end, and return the exit status.

    They write their results to the new folder ``part``. ``own``: the GPUs that they use.
    """
    part.mkdir(parents=True)
    (part / "spec.json").write_text(spec.to_json(), encoding="utf-8")
    (part / "launch_settings.json").write_text(settings.to_json(), encoding="utf-8")
    process: subprocess.Popen | None = None
    trouble: str | None = None
    ranks = Ranks(part, spec.processes)
    with Heartbeat(part):
        try:
            process = processes.start(spec, settings, [*program, str(part)], log, own)
            say(
                f"starting, at most about {progress.clock(settings.launch_budget_s)}"
                if settings.launch_budget_s
                else "starting"
            )
            trouble = watch(process, ranks, settings, say)
            for message in ranks.new_messages():
                say(message)
            if trouble:
                say(f"{trouble}, stopped")
                return 1
            if process.returncode:
                say(_failure(spec, ranks, part, log))
            return process.returncode
        finally:
            if process:
                if trouble in (None, WORKFLOW_GONE):  # if a rank hangs, the ranks cannot save a checkpoint
                    _end_politely(spec, settings, process, ranks)
                processes.stop(process)


def _failure(spec: RunSpec, ranks: Ranks, part: Path, log: Path) -> str:
    """Why the processes ended with an error: one line for a known reason, otherwise the end of the error."""
    if (dead := _dead(spec, ranks, log)) is not None:
        return f"rank {dead}, {_role(spec, dead)}, has died, {ranks.location(dead)}; more in {log}"
    if why := ranks.ended():
        return f"{why}; more in {log}"
    if shutil.disk_usage(part).free < MIN_FREE_BYTES:  # the ranks could not write their errors
        return f"no space is left on the disk of {part.parent.parent}"
    return f"failed; more in {log}:\n{_end(ranks.error() or log.read_text(encoding='utf-8', errors='replace'))}"


def _end_politely(spec: RunSpec, settings: LaunchSettings, process: subprocess.Popen, ranks: Ranks) -> None:
    """Ask the ranks to end if they have steps to save, or if they are not children of this process.

    Only ranks are asked, because training needs the processes that read its data until it has saved.
    """
    ranks.poll()
    training = spec.kind == "accuracy" and ranks.slowest() is not None
    if training or settings.by != "local":
        ranks.ask_to_end()
        _wait(process, SAVE_GRACE_S if training else processes.TERM_GRACE_S)


def _dead(spec: RunSpec, ranks: Ranks, log: Path) -> int | None:
    """The rank that died without an error, as other ranks or the launcher report; None if no rank did."""
    if ranks.error() is not None:
        return ranks.died()
    text = log.read_text(encoding="utf-8", errors="replace")
    killed = re.search(supervise.KILLED, text) or re.search(ENGINES[spec.cluster.engine].killed, text)
    return int(killed[1]) if killed else None


def _role(spec: RunSpec, rank: int) -> str:
    if rank < spec.cluster.workers:
        return "a worker"
    return "the server" if spec.topology.servers else "an aggregator"


def watch(process: subprocess.Popen, ranks: Ranks, settings: LaunchSettings, say: RunLogger) -> str | None:
    """Wait until the processes end, and print their progress. Return why they must be stopped earlier, or None."""
    try:
        pids = {os.getppid(), settings.workflow} - {0} if settings.workflow else set()
        above = [psutil.Process(pid) for pid in pids]
    except psutil.NoSuchProcess:
        return WORKFLOW_GONE
    first: tuple[float, int] | None = None  # the time and the steps of the first report
    printed_at = 0.0
    while process.poll() is None:
        ranks.poll()
        for message in ranks.new_messages():
            say(message)
        if not all(map(processes.lives, above)):
            return WORKFLOW_GONE
        if stalled := ranks.stalled(settings.hang_timeout_s):
            return stalled
        now, state = say.spent_s(), ranks.slowest()
        if state is not None:
            done, total = state
            if first is None:
                first = (now, done)
            elif now - printed_at >= PROGRESS_INTERVAL_S and done > first[1]:
                printed_at = now
                step_s = (now - first[0]) / (done - first[1])
                left_s = step_s * (total - done)
                say(f"{done}/{total}, {progress.clock(left_s)} left", left_s, step_s * total)
        _wait(process, HEARTBEAT_INTERVAL_S)
    return None


def _wait(process: subprocess.Popen, seconds: float) -> None:
    """Wait until the process ends, at most ``seconds``. It polls rarely, because timed runs use the same cores."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.2)


@contextmanager
def _too_late_to_stop() -> Iterator[None]:
    """Ignore the signals that ask to stop: the run is finished, and what is not moved yet would be lost."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def publish_results(launches: list[tuple[Path, str | None]], folder: Path, wall_s: float, launched: int) -> None:
    """Move the results of launches, (folder, what disturbed the launch), to ``folder``.

    run.json is moved last: a folder that has it is complete. It holds a checksum of each table and of itself. The
    tables ``OBSERVED`` hold the rows of all launches, with the number of the launch; the other tables come from the
    last launch, the commit from all. ``launched``: the number of launches, with those that were repeated.
    """
    last, _ = launches[-1]
    for table in OBSERVED if len(launches) > 1 else ():
        if (last / table).exists():
            texts = [(part / table).read_text(encoding="utf-8").splitlines() for part, _ in launches]
            rows = [f"{number},{row}" for number, text in enumerate(texts, start=1) for row in text[1:]]
            (last / table).write_text("\n".join([f"launch,{texts[0][0]}", *rows, ""]), encoding="utf-8")
    metadata = {
        "wall_s": round(wall_s, 1),
        "disturbed": "; ".join(trouble for _, trouble in launches if trouble),
        "launched": launched,
        "files": {path.name: checksums.of(path) for path in sorted(last.glob("*.csv"))},
    }
    runs = [json.loads((part / "run.json").read_text(encoding="utf-8")) for part, _ in launches]
    run = runs[-1] | metadata
    # Code may be committed between two launches; each begins with the newest.
    run["provenance"]["commit"] = ", ".join(dict.fromkeys(one["provenance"]["commit"] for one in runs))
    run = checksums.signed(run)
    # Written before anything is moved: if the disk is full, nothing is left in ``folder``.
    write_atomically(last / "run.json", (json.dumps(run, indent=1) + "\n").encode())
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*last.glob("*.csv"), *last.glob("trace.json"), last / "run.json"]:
        wait_for_disk(path)
        path.replace(folder / path.name)
    wait_for_disk(folder)  # before the checkpoints are removed: the machine may stop at any time


def _end(text: str, lines: int = 20) -> str:
    return "\n".join(text.splitlines()[-lines:])
