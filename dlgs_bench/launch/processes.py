"""Starts and stops the processes of one run. No torch."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from dlgs_bench.engines import ENGINES
from dlgs_bench.launch import nodes
from dlgs_bench.launch.gpus import VISIBLE
from dlgs_bench.spec import LaunchSettings, RunSpec

TERM_GRACE_S = 5  # the time that processes have to end after SIGTERM
SAVE_GRACE_S = 30  # of an accuracy run that was asked to end: it ends its step, evaluates and saves


def start(spec: RunSpec, settings: LaunchSettings, program: list[str], log: Path, gpus: list[str]) -> subprocess.Popen:
    """Start ``program`` on every rank of ``spec``, with output to ``log``, and return the launcher's process.

    ``gpus``: the GPUs of this machine that it may use. ``nodes.Refused`` if ``settings`` do not allow to start it.
    """
    environment = os.environ | ENGINES[spec.cluster.engine].environment(spec.cluster.threads, spec.timed)
    if gpus:
        environment[VISIBLE] = ",".join(gpus)
    launcher = _launcher(spec, settings, program, environment)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            launcher, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    _keep_nice(process)
    return process


def _keep_nice(process: subprocess.Popen) -> None:
    """Give the session of ``process`` the nice value of this process.

    Linux shares cores among sessions by their own values (autogroup in sched(7)), so without this, the runs of a
    workflow that was started by ``nice`` would get as much of the cores as other programs.
    """
    nice = os.nice(0)
    if nice <= 0:
        return
    for _ in range(10):
        try:
            Path(f"/proc/{process.pid}/autogroup").write_text(str(nice), encoding="utf-8")
            return
        except BlockingIOError:  # the kernel allows a user one call in 0.1 s
            time.sleep(0.1)
        except OSError:  # no autogroups, /proc is read-only, or the process has ended: a run goes on without it
            return


def _launcher(spec: RunSpec, settings: LaunchSettings, program: list[str], environment: Mapping[str, str]) -> list[str]:
    """The command of the launcher for a testbed, for this machine or for several nodes."""
    cluster = spec.cluster
    if cluster.network == "testbed":
        rates_mbit = ",".join(f"{rate:g}" for rate in cluster.rates_mbit)
        links = [rates_mbit, f"{cluster.latency_ms:g}"]
        return [sys.executable, "-m", "dlgs_bench.launch.hosts", cluster.engine, *links, *program]
    if settings.by == "local":
        return ENGINES[cluster.engine].command(spec.processes, program)
    return nodes.command(spec, settings, program, environment)


def lives(process: psutil.Process) -> bool:
    """Whether the process runs. A zombie process does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(process: subprocess.Popen) -> None:
    """Stop all processes on this machine that ``start`` started: first SIGTERM, then SIGKILL after a grace period."""
    if process.poll() is not None:
        return
    processes = _suspended(psutil.Process(process.pid))
    for ask in (psutil.Process.terminate, psutil.Process.resume):  # in this order, so that they start no new processes
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                ask(one)
    _, left = psutil.wait_procs(processes, TERM_GRACE_S)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _suspended(first: psutil.Process) -> list[psutil.Process]:
    """Suspend the process and all its descendants, so that none starts another process, and return them."""
    processes: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        while new := [one for one in (first, *first.children(recursive=True)) if one not in processes]:
            for one in new:
                with suppress(psutil.NoSuchProcess):
                    one.suspend()
            processes += new
    return processes
