"""A Slurm cluster of this machine alone, for tests: Debian's slurm-wlm and munge, set up in a folder and torn down.

python tests/slurm_node.py <command ...>   runs a command in one, such as a shell
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
SBIN = "/usr/sbin:/usr/bin:/sbin:/bin"
GPUS = 4  # that the node seems to have: to be asked for, not to be used
SETTINGS = """\
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=20
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=5
GresTypes=gpu
NodeName={host} CPUs={cpus} RealMemory={memory_mb} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be none here, or nothing."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=SBIN)]
    if absent:
        return f"no {absent[0]} here (apt-get install slurm-wlm munge)"
    return "only root may start Slurm's daemons" if os.geteuid() else ""


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """What the environment of Slurm's commands must say, while the cluster runs; all of it lies in ``folder``."""
    sockets = [socket.create_server(("", 0)) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host, memory_mb = socket.gethostname(), psutil.virtual_memory().total >> 20
    about = {"host": host, "ports": ports, "folder": folder, "cpus": 2 * os.cpu_count(), "memory_mb": memory_mb}
    (folder / "slurm.conf").write_text(SETTINGS.format(gpus=GPUS, **about))
    for number in range(GPUS):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    places = [f"--{what}={folder}/munge.{what.removesuffix('-file')}" for what in ("socket", "key-file", "pid-file")]
    places += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    daemons = []
    try:
        for command in (["munged", "--foreground", "--force", *places], ["slurmctld", "-D"], ["slurmd", "-D"]):
            with (folder / f"{command[0]}.said").open("w") as said:
                command[0] = shutil.which(command[0], path=SBIN)
                daemons.append(subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT))
            time.sleep(1)
        _until_idle(environment, folder)
        yield environment
    finally:
        with suppress(OSError):
            subprocess.run(["scancel", "--user=root", "--hurry"], env=environment, timeout=20, capture_output=True)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in psutil.process_iter(["cmdline"]):  # of jobs that were still there
            if process.info["cmdline"] and process.info["cmdline"][0].startswith("slurmstepd"):
                with suppress(psutil.Error):
                    if process.environ().get("SLURM_CONF", "").startswith(str(folder)):
                        process.kill()


def _until_idle(environment: dict[str, str], folder: Path) -> None:
    end = time.monotonic() + 60
    while True:
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return
        if time.monotonic() > end:
            logs = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
            raise RuntimeError(f"Slurm does not start: {done.stdout}{done.stderr}\n{logs}")
        time.sleep(0.5)


if __name__ == "__main__":
    if missing():
        sys.exit(missing())
    with tempfile.TemporaryDirectory(prefix="slurm") as place, cluster(Path(place)) as its:
        sys.exit(subprocess.run(sys.argv[1:], env=its).returncode)
