"""Starts the processes of one run and brings its results home, whole or not at all.

python -m harness.launch '<spec as JSON>' <run folder> <log file> [<plan file>]
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness.launch import progress
from harness.spec import RunSpec

STALLED_S = 900  # no progress for so long: a worker hangs
SAY_EVERY_S = 10

ENVIRONMENT = {
    # Sums are not fused by Horovod (see comm/horovod.py): our buckets are merged already.
    "HOROVOD_DISABLE_GROUP_FUSION": "1",
    # Lengths that change from step to step make its response cache cost ten times what it saves.
    "HOROVOD_CACHE_CAPACITY": "0",
    # glibc would give every large tensor's pages back and fault them in again: 5-10 % of an iteration.
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "PYTHONUNBUFFERED": "1",
}


def command(spec: RunSpec, folder: Path) -> list[str]:
    """The engine's own launcher, or the testbed's, from the environment this runs in."""
    bin_ = Path(sys.executable).parent
    worker = ["-m", "harness.training.run", str(folder)]
    if spec.network == "testbed":
        rates_mbit = ",".join(f"{rate:g}" for rate in spec.rates_mbit)
        return [sys.executable, "-m", "harness.launch.hosts", spec.engine, rates_mbit, sys.executable, *worker]
    processes = str(spec.workers + spec.servers)
    match spec.engine:
        case "horovod":
            return [str(bin_ / "horovodrun"), "-np", processes, "--gloo", sys.executable, *worker]
        case "torch_dist":
            return [str(bin_ / "torchrun"), "--standalone", "--nproc-per-node", processes, *worker]
    raise ValueError(f"no launcher for engine {spec.engine!r}")


def launch(spec: RunSpec, folder: Path, log: Path) -> int:
    """Run ``spec``; on success its files lie in ``folder``, on failure none do. Return the status."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    (partial / "spec.json").write_text(spec.to_json())
    environment = os.environ | ENVIRONMENT | {
        "OMP_NUM_THREADS": str(spec.threads),
        "LAUNCHER_PID": str(os.getpid()),
    }  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(
            command(spec, partial), stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: (_stop(process), sys.exit(1)))
        begun = time.monotonic()
        _say(folder, 0, f"{spec.title()}: starting")
        status = _watch(spec, process, partial / "progress.json", folder)
    wall_s = round(time.monotonic() - begun, 1)
    if status == 0:
        folder.mkdir(parents=True, exist_ok=True)
        run = json.loads((partial / "run.json").read_text())
        (partial / "run.json").write_text(json.dumps(run | {"wall_s": wall_s}, indent=1))
        for path in [*partial.glob("*.csv"), *partial.glob("trace.json"), partial / "run.json"]:
            path.replace(folder / path.name)
        _say(folder, 0, f"{spec.title()}: done in {progress.clock(wall_s)}")
    else:
        _say(folder, 0, f"{spec.title()}: failed; the end of {log}:\n{_end_of(log)}")
    shutil.rmtree(partial, ignore_errors=True)
    return status


def _end_of(log: Path, lines: int = 20) -> str:
    """The last lines that the workers wrote, without what horovodrun adds about itself."""
    written = log.read_text(errors="replace").splitlines()
    workers = [line for line in written if re.match(r"\[\d+\]<std", line)]
    return "\n".join((workers or written)[-lines:])


def _say(folder: Path, spent_s: float, what: str) -> None:
    print(progress.whole(folder, spent_s) + what, file=sys.stderr, flush=True)


def _watch(spec: RunSpec, process: subprocess.Popen, path: Path, folder: Path) -> int:
    """Wait for the processes; say how far they are; stop them if they hang or nobody waits for them."""
    begun = said = moved = time.monotonic()
    first, last, above = None, None, _workflow()
    while process.poll() is None:
        time.sleep(0.2)
        now = time.monotonic()
        state = progress.read(path)
        if state != last:
            last, moved = state, now
            first = first or (now, state["done"])
        if not all(map(_lives, above)):
            _stop(process)
            return 1
        if now - moved > STALLED_S:
            _say(folder, now - begun, f"{spec.title()}: no progress for {STALLED_S} s, stopped")
            _stop(process)
            return 1
        if now - said >= SAY_EVERY_S and state and state["done"] > first[1]:
            said = now
            left = (now - first[0]) * (state["total"] - state["done"]) / (state["done"] - first[1])
            _say(folder, now - begun, f"{spec.title()}: {state['done']}/{state['total']}, {progress.clock(left)} left")
    return process.returncode


def _workflow() -> list[psutil.Process]:
    """The processes above this one, up to the workflow's; if one ends, nobody waits for the run."""
    above = psutil.Process().parents()
    last = next((i for i, p in enumerate(above) if "snakemake" in " ".join(p.cmdline())), 0)
    return above[: last + 1]


def _lives(process: psutil.Process) -> bool:
    """Whether the process runs; one that was killed and not yet waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stop(process: subprocess.Popen) -> None:
    """End the launcher's whole process group, politely, then by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def check_calibration(plan: dict) -> None:
    """ValueError in one line if the calibration that the plan was made from is not the one that is there."""
    for path, known in plan["calibration"].items():
        if not Path(path).exists() or hashlib.sha256(Path(path).read_bytes()).hexdigest() != known:
            raise ValueError(f"the plan is from another calibration than {path}")


def main(spec_json: str, folder: str, log: str, plan: str = "") -> int:
    spec = RunSpec.from_json(spec_json)
    if plan:
        try:
            found = json.loads(Path(plan).read_text())
            check_calibration(found)
            spec = spec.planned(found)
        except ValueError as error:
            sys.exit(f"error: {plan}: {error}; delete the plan and let the workflow make it again")
    return launch(spec, Path(folder), Path(log))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
