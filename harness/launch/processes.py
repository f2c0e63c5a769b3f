"""The processes of one run: how they start, whether they live, how they end. No torch."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from harness.engines import ENGINES
from harness.spec import RunSpec

POLITE_S = 5  # processes that were asked to end may take so long


def command(spec: RunSpec, program: list[str]) -> list[str]:
    """What starts ``program`` on every rank: the engine's own launcher, or the testbed's."""
    cluster = spec.cluster
    if cluster.network == "testbed":
        rates_mbit = ",".join(f"{rate:g}" for rate in cluster.rates_mbit)
        links = [rates_mbit, f"{cluster.latency_ms:g}"]
        return [sys.executable, "-m", "harness.launch.hosts", cluster.engine, *links, *program]
    return ENGINES[cluster.engine].command(spec.processes, program)


def start(spec: RunSpec, program: list[str], log: Path) -> subprocess.Popen:
    """Start the processes of ``spec``, whose output goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | ENGINES[spec.cluster.engine].environment(
        spec.cluster.threads, timed=spec.kind != "accuracy"
    )
    with log.open("w") as output:
        return subprocess.Popen(
            command(spec, program), stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def lives(process: psutil.Process) -> bool:
    """Whether the process runs; one that ended and was not yet waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(process: subprocess.Popen) -> None:
    """End what ``start`` started on this machine, politely, then by force; nothing happens if it has ended."""
    if process.poll() is not None:
        return
    known = _suspended(psutil.Process(process.pid))
    for ask in (psutil.Process.terminate, psutil.Process.resume):  # in this order, they end before they start more
        for one in known:
            with suppress(psutil.NoSuchProcess):
                ask(one)
    _, left = psutil.wait_procs(known, POLITE_S)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _suspended(first: psutil.Process) -> list[psutil.Process]:
    """The process and all below it, suspended, so that none starts another which nobody would know of."""
    known: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        while new := [one for one in (first, *first.children(recursive=True)) if one not in known]:
            for one in new:
                with suppress(psutil.NoSuchProcess):
                    one.suspend()
            known += new
    return known
