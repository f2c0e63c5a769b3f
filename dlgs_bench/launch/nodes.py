"""The nodes of a run that several machines share: which they are, and how its processes get there. No torch.

All nodes see the project's folder, and the runs' folders in it, at the same path.

python -m dlgs_bench.launch.nodes <a JSON list of commands>   becomes the command of this node of a Slurm job
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlgs_bench.engines import ENGINES
from dlgs_bench.spec import LaunchSettings, RunSpec

SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
POLL_INTERVAL_S = 60  # a host may take so long to say what it has
# What the processes of a run find in their environment on every node, beside what their engine wants.
CARRIED = re.compile(r"PATH|LD_LIBRARY_PATH|(PYTHON|GLOO|NCCL|TORCH|OMP|MKL|MALLOC|NUMBA)_?\w*")


class Refused(Exception):
    """Why a run cannot be started where it was asked to be; the message is one line for a person."""


def of(processes: int, settings: LaunchSettings, device: str = "cpu") -> dict[str, int]:
    """Which nodes take so many processes, and how many each; Refused if they do not fit."""
    return (_of_job if settings.by == "slurm" else _of_hosts)(processes, settings, device)


def command(spec: RunSpec, settings: LaunchSettings, program: list[str], environment: Mapping[str, str]) -> list[str]:
    """What starts ``program``, whose last argument is the run's folder, on the nodes of ``settings``; Refused if it
    cannot be started there."""
    engine, taken = ENGINES[spec.cluster.engine], of(spec.processes, settings, spec.cluster.device)
    folder = Path(program[-1])
    port = free_port() if settings.by == "slurm" else reach(taken, spec.cluster.device, settings.per_gpu, folder)
    commands = engine.on_nodes(taken, settings.interface, port, program)
    if "" in commands:
        return commands[""]
    if settings.by == "slurm":
        own = [sys.executable, "-m", "dlgs_bench.launch.nodes", json.dumps([commands[node] for node in taken])]
        # One launcher on each node, with all that the job has there.
        each = [f"--nodes={len(taken)}", f"--ntasks={len(taken)}", "--ntasks-per-node=1"]
        return ["srun", *each, "--overlap", "--cpu-bind=none", "--kill-on-bad-exit=1", *own]
    carried = [f"{name}={value}" for name, value in environment.items() if CARRIED.fullmatch(name)]
    # With a terminal, what runs there ends when ssh ends here, however it does.
    there = [[*SSH, "-tt", node, _in_this_folder(["env", *carried, *own])] for node, own in commands.items()]
    return [sys.executable, "-m", "dlgs_bench.launch.supervise", json.dumps(there)]


def reach(taken: Mapping[str, int], device: str, per_gpu: int, folder: Path) -> int:
    """A free port of the first node; Refused unless ssh reaches all nodes and they see ``folder`` and have the GPUs."""
    with ThreadPoolExecutor(len(taken)) as pool:
        found = dict(zip(taken, pool.map(lambda node: _look(node, folder), taken), strict=True))
    for node, count in taken.items():
        if not found[node]["seen"]:
            raise Refused(f"launch.hosts: {node} does not see {folder.resolve()}; give hosts that share this folder")
        if device == "cuda" and found[node]["gpus"] * per_gpu < count:
            has = f"{node} shows {found[node]['gpus']} GPUs for {count} processes"
            raise Refused(f"launch.hosts: {has}; give it fewer, or a larger launch.per_gpu")
    return found[next(iter(taken))]["port"]


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def _look(node: str, folder: Path) -> dict:
    """What ``dlgs_bench.launch.probe`` says of a node."""
    look = [sys.executable, "-m", "dlgs_bench.launch.probe", str(folder)]
    try:
        done = subprocess.run(
            [*SSH, node, _in_this_folder(look)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=POLL_INTERVAL_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        hangs = f"{node} has not said within {POLL_INTERVAL_S} s what it sees of {folder.resolve()}"
        raise Refused(f"launch.hosts: {hangs}; give hosts that answer") from None
    if done.returncode:
        why = (done.stderr.strip() or f"ssh ended with status {done.returncode}").splitlines()[-1]
        raise Refused(f"launch.hosts: {node}: {why.strip()}; give hosts that ssh reaches and that share this folder")
    return json.loads(done.stdout.splitlines()[-1])  # a shell may greet


def _in_this_folder(command: list[str]) -> str:
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command)}"


def _of_hosts(processes: int, settings: LaunchSettings, device: str) -> dict[str, int]:
    """The first of the hosts that a configuration names."""
    taken, left = {}, processes
    for host in settings.hosts:
        name, _, count = host.rpartition(":")
        if left:
            taken[name] = min(left, int(count))
            left -= taken[name]
    if left:
        raise Refused(f"launch.hosts: {processes - left} slots for {processes} processes; give more hosts")
    return taken


def _of_job(processes: int, settings: LaunchSettings, device: str) -> dict[str, int]:
    """The nodes of the Slurm job that this is, each with its part of the tasks.

    Slurm says what the job has, and not the environment: Snakemake's executor takes it out of that.
    """
    if "SLURM_JOB_ID" not in os.environ:
        raise Refused(
            "launch.by: this is no Slurm job; give local, or --workflow-profile profiles/slurm to submit jobs"
        )
    job = _scontrol("job", "--details", os.environ["SLURM_JOB_ID"])
    names = _scontrol("hostnames", re.search(r"^\s*NodeList=(\S+)", job, re.MULTILINE)[1]).split()
    tasks = int(re.search(r"NumTasks=(\d+)", job)[1])
    if tasks != processes:
        raise Refused(
            f"launch.by: the Slurm job has {tasks} tasks, the run {processes} processes; give --ntasks={processes}"
        )
    gpus = sum(map(int, re.findall(r"\bgpu(?::[^:,]+)?:(\d+)", "".join(re.findall(r"JOB_GRES=(\S+)", job)))))
    if device == "cuda" and gpus * settings.per_gpu < tasks:
        has = f"the Slurm job has {gpus} GPUs for {tasks} processes"
        raise Refused(f"launch.by: {has}; submit it with more, or give a larger launch.per_gpu")
    each, more = divmod(tasks, len(names))
    return {name: each + (number < more) for number, name in enumerate(names)}


def _scontrol(*what: str) -> str:
    done = subprocess.run(["scontrol", "show", *what], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"launch.by: Slurm does not say what this job has: {done.stderr.strip()}")
    return done.stdout


def main(commands: str) -> None:
    own = json.loads(commands)[int(os.environ["SLURM_NODEID"])]
    os.execvp(own[0], own)


if __name__ == "__main__":
    main(*sys.argv[1:])
