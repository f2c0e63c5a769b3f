"""The engines: the commands that start their processes, and their environment variables. No torch, no Horovod.

This file has the names of all engines. It is not in ``dlgs_bench/comm``, because that package imports torch. The
communicator of an engine is in ``dlgs_bench/comm/<name>_engine.py``. A run imports this file, because environment
variables can change its numbers.
"""

import importlib.util
import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
RENDEZVOUS = Path(__file__).parent / "comm" / "horovod_rendezvous.py"
# A week, which disables the engines' own timeouts: the launcher detects ranks that hang, by ``hang_timeout_s``.
TIMEOUT_S = int(os.environ.get("DLGS_BENCH_ENGINE_TIMEOUT_S", 7 * 24 * 3600))
# Gloo: the bytes of a gathered message that are sent together with its length; a second message has the rest.
FIRST_BYTES = 2**16
COMMON = {
    # By default glibc returns the pages of every large tensor to the kernel, which takes 5-10 % of an iteration.
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "PYTHONUNBUFFERED": "1",
}
TORCH_BUILT = """
import torch.distributed as d
if d.is_available():
    print(*(name for name in ("Gloo", "MPI", "NCCL") if getattr(d, f"is_{name.lower()}_available")()))
"""
HOROVOD_BUILT = """
import horovod.torch as h
print(*(name for name in ("Gloo", "MPI", "NCCL") if getattr(h, f"{name.lower()}_built")()))
"""
Start = Callable[[list[str]], str]  # starts a program on the first host and returns its first line


@dataclass(frozen=True)
class Engine(ABC):
    """What a launcher needs to start the processes of an engine.

    ``size``, ``local_size``: environment variables with the number of processes, in all and on this machine.
    ``requires_all_ranks``: whether every rank must join every round, as in the engine's communicator.
    ``killed``: matches the output of the engine's launcher if a signal killed a rank; its group is the first such rank.
    ``shares_gpus``: whether several processes can use one GPU.
    ``built``: a program that prints which of Gloo, MPI and NCCL the engine was built with.
    ``package``: the Python package that it needs.
    """

    name: str
    size: str
    local_size: str
    requires_all_ranks: bool
    killed: str  # a regular expression with one group
    shares_gpus: bool
    built: str
    package: str

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def environment(self, threads: int, timed: bool = True) -> dict[str, str]:
        """The environment variables that every process needs; ``timed``: whether the run measures time."""
        return COMMON | {"OMP_NUM_THREADS": str(threads)}

    def command(self, processes: int, program: list[str]) -> list[str]:
        """The command that starts ``processes`` copies of ``program`` on this machine.

        Run it in the project's folder. The engine's own launcher is not used: it imports torch, which takes seconds.
        """
        return [sys.executable, "-m", "dlgs_bench.launch.one_machine", self.name, str(processes), *program]

    @abstractmethod
    def on_nodes(self, nodes: Mapping[str, int], interface: str, port: int, program: list[str]) -> dict[str, list[str]]:
        """The commands of the engine's launcher that start ``program`` on several nodes, by node; "" is this machine.

        ``nodes``: node -> number of processes. ``interface``: the network interface to use, if it is not empty.
        ``port``: a free port of the first node.
        """

    @abstractmethod
    def needs(self, device: str, shared: bool) -> set[str]:
        """The features that the engine must be built with; ``shared``: whether several processes use one GPU."""

    def lacks(self, device: str, shared: bool) -> str | None:
        """The needed features that the installed engine lacks, in words; None if it lacks none."""
        done = subprocess.run([sys.executable, "-c", self.built], capture_output=True, text=True)
        if done.returncode:
            ending = done.stderr.strip() or f"its import ended with status {done.returncode}"
            return "it cannot be imported: " + ending.splitlines()[-1]
        missing = self.needs(device, shared) - set(done.stdout.split())
        return f"it was built without {' and '.join(sorted(missing))}" if missing else None

    @abstractmethod
    def on_hosts(self, addresses: list[str], interface: str, port: int, start: Start) -> list[dict[str, str]]:
        """The variables by which processes find each other, one dict per rank; rank i runs at ``addresses[i]``.

        ``port``: a free port of the first host.
        """

    def one_machine(self, environment: Mapping[str, str]) -> bool:
        """Whether all processes are on one machine, according to the environment of one of them."""
        return environment.get(self.size) == environment.get(self.local_size)


class HorovodLauncher(Engine):
    def environment(self, threads: int, timed: bool = True) -> dict[str, str]:
        # Horovod's thread polls every ms, which on two cores slows the training of ResNet-20 by at least 10 %. Polling
        # every 5 ms delays exchanges, so timed runs keep the default.
        cycle = {} if timed else {"HOROVOD_CYCLE_TIME": "5"}
        settings = {
            # Fusion depends on timing and changes the order of additions. Buckets are merged already.
            "HOROVOD_DISABLE_GROUP_FUSION": "1",
            # If lengths change from step to step, the response cache costs ten times more than it saves.
            "HOROVOD_CACHE_CAPACITY": "0",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_S),  # 30 s by default
        }
        return super().environment(threads) | settings | cycle

    @property
    def _controller(self) -> str:
        """MPI if ``mpirun`` is installed (see environment.yml), otherwise Gloo."""
        return "MPI" if (BIN / "mpirun").exists() else "Gloo"

    def command(self, processes: int, program: list[str]) -> list[str]:
        if self._controller == "Gloo":
            return super().command(processes, program)
        return self._run(processes, [], program)

    def on_nodes(self, nodes: Mapping[str, int], interface: str, port: int, program: list[str]) -> dict[str, list[str]]:
        # By default horovodrun caches the networks that it finds, for one hour and for all runs of this user.
        where = ["--disable-cache", "-H", ",".join(f"{node}:{count}" for node, count in nodes.items())]
        where += ["--network-interfaces", interface] if interface else []
        return {"": self._run(sum(nodes.values()), where, program)}

    def _run(self, processes: int, where: list[str], program: list[str]) -> list[str]:
        return [str(BIN / "horovodrun"), "-np", str(processes), f"--{self._controller.lower()}", *where, *program]

    def needs(self, device: str, shared: bool) -> set[str]:
        return {self._controller} | ({"NCCL"} if device == "cuda" else set())

    def on_hosts(self, addresses: list[str], interface: str, port: int, start: Start) -> list[dict[str, str]]:
        return json.loads(start([sys.executable, str(RENDEZVOUS), interface, *addresses]))


class TorchDistLauncher(Engine):
    def on_nodes(self, nodes: Mapping[str, int], interface: str, port: int, program: list[str]) -> dict[str, list[str]]:
        master = ["--nnodes", str(len(nodes)), "--master-addr", next(iter(nodes)), "--master-port", str(port)]
        through = [f"{kind}_SOCKET_IFNAME={interface}" for kind in ("GLOO", "NCCL") if interface]
        torchrun = ["env", *through, str(BIN / "torchrun"), *master]
        return {
            node: [*torchrun, "--node-rank", str(number), "--nproc-per-node", str(count), "--no-python", *program]
            for number, (node, count) in enumerate(nodes.items())
        }

    def needs(self, device: str, shared: bool) -> set[str]:
        return {"NCCL" if device == "cuda" and not shared else "Gloo"}

    def on_hosts(self, addresses: list[str], interface: str, port: int, start: Start) -> list[dict[str, str]]:
        shared = {"MASTER_ADDR": addresses[0], "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": interface}
        return [
            shared
            | {"RANK": str(rank), "WORLD_SIZE": str(len(addresses))}
            | {"LOCAL_RANK": str(addresses[:rank].count(host)), "LOCAL_WORLD_SIZE": str(addresses.count(host))}
            for rank, host in enumerate(addresses)
        ]


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        HorovodLauncher(
            "horovod",
            "HOROVOD_SIZE",
            "HOROVOD_LOCAL_SIZE",
            requires_all_ranks=True,
            killed=r"The first process to do so was:\nProcess name: (\d+)\nExit code: (?!143)1[2-5]\d",
            shares_gpus=False,
            built=HOROVOD_BUILT,
            package="horovod",
        ),
        TorchDistLauncher(
            "torch_dist",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            requires_all_ranks=False,
            killed=r"(?s)Root Cause.* rank +: (\d+).* exitcode +: -(?!15)\d",
            shares_gpus=True,
            built=TORCH_BUILT,
            package="torch",
        ),
    )
}
