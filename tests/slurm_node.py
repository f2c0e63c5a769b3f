"""A Slurm cluster for tests, of this machine alone or of a testbed's hosts: Debian's slurm-wlm and munge, set up in a
folder and torn down.

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
STANDARD = Path("/etc/slurm")  # where Slurm looks: Snakemake's executor takes SLURM_CONF out of a job's environment
GPUS = 4  # that the node seems to have: to be asked for, not to be used
SETTINGS = """\
ClusterName=test
SlurmctldHost={controller}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
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
NodeName={nodes} CPUs={cpus} RealMemory={memory_mb} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why a cluster cannot start here, or None."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=SBIN)]
    if absent:
        return f"no {absent[0]} here (apt-get install slurm-wlm munge)"
    if (STANDARD / "slurm.conf").exists():
        return f"{STANDARD}/slurm.conf is there: this machine has a Slurm of its own"
    return "only root may start Slurm's daemons" if os.geteuid() else None


class ThisMachine:
    """A node that is this machine; several are ``ssh_hosts.Hosts``."""

    def __init__(self):
        self.names = [socket.gethostname()]

    def start(self, command: list[str], host: int = 0, **settings) -> subprocess.Popen:
        return subprocess.Popen(command, **settings)


@contextmanager
def cluster(folder: Path, hosts=None) -> Iterator[None]:
    """Run a cluster whose nodes are ``hosts``. All its files are in the new ``folder``, except links in
    ``STANDARD``."""
    hosts = hosts or ThisMachine()
    sockets = [socket.create_server(("", 0)) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    for name in ("state", *(f"spool-{node}" for node in hosts.names)):
        (folder / name).mkdir()
    settings = {"controller": hosts.names[0], "nodes": ",".join(hosts.names), "ports": ports, "folder": folder}
    settings |= {"cpus": 2 * os.cpu_count(), "memory_mb": psutil.virtual_memory().total >> 20, "gpus": GPUS}
    (folder / "slurm.conf").write_text(SETTINGS.format(**settings))
    for number in range(GPUS):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    links = [STANDARD / name for name in ("slurm.conf", "gres.conf")]
    places = [f"--{what}={folder}/munge.{what.removesuffix('-file')}" for what in ("socket", "key-file", "pid-file")]
    places += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    commands = [(0, ["munged", "--foreground", "--force", *places]), (0, ["slurmctld", "-D"])]
    commands += [(number, ["slurmd", "-D", "-N", node]) for number, node in enumerate(hosts.names)]
    daemons = []
    try:
        for link in links:
            link.unlink(missing_ok=True)  # to a folder that is gone
            link.symlink_to(folder / link.name)
        for host, command in commands:
            with (folder / f"{command[0]}-{host}.said").open("w") as said:
                command[0] = shutil.which(command[0], path=SBIN)
                daemons.append(hosts.start(command, host, stdout=said, stderr=subprocess.STDOUT))
            time.sleep(1)
        _until_idle(folder, hosts)
        yield
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            hosts.start(["scancel", "--user=root", "--hurry"], stderr=subprocess.DEVNULL).wait(60)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(daemons):
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for link in links:
            link.unlink(missing_ok=True)


def _until_idle(folder: Path, hosts) -> None:
    end = time.monotonic() + 600
    while True:
        asked = hosts.start(
            ["sinfo", "-h", "-N", "-o", "%T"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said, _ = asked.communicate()
        if said.split() == ["idle"] * len(hosts.names):
            return
        if time.monotonic() > end:
            logs = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
            raise RuntimeError(f"Slurm does not start: {said}\n{logs}")
        time.sleep(0.5)


if __name__ == "__main__":
    if missing():
        sys.exit(missing())
    with tempfile.TemporaryDirectory(prefix="slurm") as place, cluster(Path(place)):
        sys.exit(subprocess.run(sys.argv[1:]).returncode)
