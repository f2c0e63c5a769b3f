"""Chooses the nodes of a run on several machines, and makes the command that starts it there. No torch.

The project's folder, with the folders of runs, has the same path on all nodes.

python -m dlgs_bench.launch.nodes <a JSON list of commands>   executes the command of this node of a Slurm job
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dlgs_bench.engines import ENGINES
from dlgs_bench.spec import LaunchSettings, RunSpec

SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
PROBE_TIMEOUT_S = 60  # for the report of a host
# The environment variables that are copied to every node, next to the variables of the engine.
COPIED = re.compile(r"PATH|LD_LIBRARY_PATH|(PYTHON|GLOO|NCCL|TORCH|OMP|MKL|MALLOC|NUMBA)_?\w*")


class Refused(Exception):
    """A run cannot be started with these settings; the message is one line."""


def of(processes: int, settings: LaunchSettings, device: str = "cpu") -> dict[str, int]:
    """The nodes that run ``processes`` processes, and the number of processes on each; Refused if they do not fit."""
    return (_of_job if settings.by == "slurm" else _of_hosts)(processes, settings, device)


def command(spec: RunSpec, settings: LaunchSettings, program: list[str], environment: Mapping[str, str]) -> list[str]:
    """The command that starts ``program`` on the nodes of ``settings``; Refused if it cannot be started there.

    The last argument of ``program`` is the run's folder.
    """
    engine, taken = ENGINES[spec.cluster.engine], of(spec.processes, settings, spec.cluster.device)
    folder = Path(program[-1])
    port = free_port() if settings.by == "slurm" else reach(taken, spec.cluster.device, settings.per_gpu, folder)
    commands = engine.on_nodes(taken, settings.interface, port, program)
    if "" in commands:
        return commands[""]
    each_node = folder / "commands.json"  # a file, since an argument may have at most 128 KiB
    if settings.by == "slurm":
        each_node.write_text(json.dumps([commands[node] for node in taken]), encoding="utf-8")
        own = [sys.executable, "-m", "dlgs_bench.launch.nodes", str(each_node)]
        # One launcher per node, with all of the job's resources on this node.
        each = [f"--nodes={len(taken)}", f"--ntasks={len(taken)}", "--ntasks-per-node=1"]
        each.append(f"--nodelist={','.join(taken)}")
        return ["srun", *each, "--overlap", "--cpu-bind=none", "--kill-on-bad-exit=1", *own]
    copied = [f"{name}={value}" for name, value in environment.items() if COPIED.fullmatch(name)]
    # With a terminal (-tt), the remote processes end when ssh ends, even if it is killed.
    remote = [[*SSH, "-tt", node, _in_this_folder(["env", *copied, *own])] for node, own in commands.items()]
    each_node.write_text(json.dumps(remote), encoding="utf-8")
    return [sys.executable, "-m", "dlgs_bench.launch.supervise", str(each_node)]


def reach(taken: Mapping[str, int], device: str, per_gpu: int, folder: Path) -> int:
    """Check all nodes, and return a free port of the first one.

    Refused if ssh does not reach a node, or if a node does not have ``folder`` or enough GPUs.
    """
    with ThreadPoolExecutor(len(taken)) as pool:
        reports = dict(zip(taken, pool.map(lambda node: _probe(node, folder), taken), strict=True))
    for node, count in taken.items():
        if not reports[node]["seen"]:
            missing = f"{folder.resolve()} does not exist on {node}"
            raise Refused(f"launch.hosts: {missing}; give hosts that share this folder")
        if device == "cuda" and reports[node]["gpus"] * per_gpu < count:
            has = f"{node} shows {reports[node]['gpus']} GPUs for {count} processes"
            raise Refused(f"launch.hosts: {has}; give it fewer, or a larger launch.per_gpu")
    return reports[next(iter(taken))]["port"]


def free_port() -> int:
    """A port of this machine that is not in use now."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def _probe(node: str, folder: Path) -> dict:
    """The report of ``dlgs_bench.launch.node_report`` on a node."""
    probe = [sys.executable, "-m", "dlgs_bench.launch.node_report", str(folder)]
    try:
        done = subprocess.run(
            [*SSH, node, _in_this_folder(probe)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=PROBE_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        silent = f"{node} did not answer within {PROBE_TIMEOUT_S} s"
        raise Refused(f"launch.hosts: {silent}; give hosts that answer") from None
    if done.returncode:
        why = (done.stderr.strip() or f"ssh ended with status {done.returncode}").splitlines()[-1]
        raise Refused(f"launch.hosts: {node}: {why.strip()}; give hosts that ssh reaches and that share this folder")
    return json.loads(done.stdout.splitlines()[-1])  # a login shell may print other lines first


def _in_this_folder(command: list[str]) -> str:
    return f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command)}"


def _of_hosts(processes: int, settings: LaunchSettings, device: str) -> dict[str, int]:
    """The first hosts of the configuration, as many as the processes need."""
    named = (host.rpartition(":") for host in settings.hosts)
    taken = _first(((name, int(count)) for name, _, count in named), processes)
    if (slots := sum(taken.values())) < processes:
        raise Refused(f"launch.hosts: {slots} slots for {processes} processes; give more hosts")
    return taken


def _first(nodes: Iterable[tuple[str, int]], processes: int) -> dict[str, int]:
    """The first nodes, as many as the processes need; ``nodes``: names, and how many processes each has room for."""
    taken, left = {}, processes
    for name, room in nodes:
        if left:
            taken[name] = min(left, room)
            left -= taken[name]
    return taken


def _of_job(processes: int, settings: LaunchSettings, device: str) -> dict[str, int]:
    """The first nodes of the current Slurm job, as many as the processes need, and the number of processes on each.

    scontrol reports them. The environment does not, because Snakemake's executor removes these variables.
    """
    if "SLURM_JOB_ID" not in os.environ:
        raise Refused(
            "launch.by: this is not a Slurm job; give local, or --workflow-profile profiles/slurm to submit jobs"
        )
    job = _scontrol("job", "--details", os.environ["SLURM_JOB_ID"])
    names = _scontrol("hostnames", re.search(r"^\s*NodeList=(\S+)", job, re.MULTILINE)[1]).split()
    tasks = int(re.search(r"NumTasks=(\d+)", job)[1])
    if tasks < processes:
        raise Refused(
            f"launch.by: the Slurm job has {tasks} tasks, the run {processes} processes; give --ntasks={processes}"
        )
    gpus = sum(map(int, re.findall(r"\bgpu(?::[^:,]+)?:(\d+)", "".join(re.findall(r"JOB_GRES=(\S+)", job)))))
    if device == "cuda" and gpus * settings.per_gpu < processes:
        has = f"the Slurm job has {gpus} GPUs for {processes} processes"
        raise Refused(f"launch.by: {has}; submit it with more, or give a larger launch.per_gpu")
    each, more = divmod(tasks, len(names))  # the first ``more`` nodes have one task more
    room = [each + 1 if number < more else each for number in range(len(names))]
    if device == "cuda" and processes < tasks and gpus % len(names) == 0:  # nodes with equally many GPUs
        most = gpus // len(names) * settings.per_gpu
        room = [min(own, most) for own in room] if most * len(names) >= processes else room
    return _first(zip(names, room, strict=True), processes)


def _scontrol(*what: str) -> str:
    done = subprocess.run(["scontrol", "show", *what], capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"launch.by: scontrol cannot describe this job: {done.stderr.strip()}; check the Slurm client")
    return done.stdout


def main(commands: str) -> None:
    own = json.loads(Path(commands).read_text(encoding="utf-8"))[int(os.environ["SLURM_NODEID"])]
    os.execvp(own[0], own)


if __name__ == "__main__":
    main(*sys.argv[1:])
