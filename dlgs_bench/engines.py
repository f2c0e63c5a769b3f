"""The engines: how their processes are started and what they find in their environment. No torch, no Horovod.

The one place that names engines. It lies beside ``dlgs_bench/comm``, whose package imports torch; the engine of a
name is ``dlgs_bench/comm/<name>_engine.py``. A run imports this file, since its environment decides numbers.
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
# After this time without a message an engine gives up. A week: the harness finds ranks that hang, by
# ``hang_timeout_s``.
TIMEOUT_S = int(os.environ.get("DLGS_BENCH_ENGINE_TIMEOUT_S", 7 * 24 * 3600))
COMMON = {
    # By default glibc returns the pages of every large tensor and faults them in again: 5-10 % of an iteration.
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
    """What a launcher must know of an engine; ``size`` and ``local_size`` are variables of its processes.

    ``requires_all_ranks``: whether a round of messages needs all of them, as its communicator says too. ``killed``:
    finds in
    what the engine's launcher printed the rank that a signal ended first. ``shares_gpus``: whether several of its
    processes can use one GPU. ``built``: a program that says which of Gloo, MPI and NCCL the engine was built with.
    ``package``: the Python package that it needs.
    """

    name: str
    size: str  # holds the number of processes
    local_size: str  # holds how many of them share the machine
    requires_all_ranks: bool
    killed: str  # a regular expression with one group
    shares_gpus: bool
    built: str
    package: str

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def environment(self, threads: int, timed: bool = True) -> dict[str, str]:
        """What every process needs, however it is started; ``timed``: in a run that times what it does."""
        return COMMON | {"OMP_NUM_THREADS": str(threads)}

    @abstractmethod
    def command(self, processes: int, program: list[str]) -> list[str]:
        """The engine's own launcher, for ``processes`` times ``program`` on this machine."""

    @abstractmethod
    def on_nodes(self, nodes: Mapping[str, int], interface: str, port: int, program: list[str]) -> dict[str, list[str]]:
        """What to start where, for so many processes of ``program`` on each of ``nodes``: node, or "" for this machine,
        -> the engine's own launcher. ``interface``: of the network to use, if not empty; ``port``: free on the first.
        """

    @abstractmethod
    def needs(self, device: str, shared: bool) -> set[str]:
        """What the engine must have been built with; ``shared``: several processes use one GPU."""

    def lacks(self, device: str, shared: bool) -> str:
        """What the installed engine was built without and needs, in words, or nothing."""
        # -P: the folder that this is called in has no say.
        done = subprocess.run([sys.executable, "-c", self.built], capture_output=True, text=True)
        if done.returncode:
            return "it cannot be imported: " + done.stderr.strip().splitlines()[-1]
        missing = self.needs(device, shared) - set(done.stdout.split())
        return f"it was built without {' and '.join(sorted(missing))}" if missing else ""

    @abstractmethod
    def on_hosts(self, addresses: list[str], interface: str, start: Start) -> list[dict[str, str]]:
        """Per rank the variables by which processes find each other, one at each of ``addresses``."""

    def one_machine(self, environment: Mapping[str, str]) -> bool:
        """Whether all processes share this machine, by the environment of one of them."""
        return environment.get(self.size) == environment.get(self.local_size)


class Horovod(Engine):
    def environment(self, threads: int, timed: bool = True) -> dict[str, str]:
        # Its thread looks for work every ms, which on two cores slows ResNet-20's training by a tenth and more. Looking
        # every 5 ms would make exchanges late, so what is timed keeps the default.
        patience = {} if timed else {"HOROVOD_CYCLE_TIME": "5"}
        settings = {
            # Fusion depends on timing and decides the order of additions. Our buckets are merged already.
            "HOROVOD_DISABLE_GROUP_FUSION": "1",
            # Lengths that change from step to step make the response cache cost ten times what it saves.
            "HOROVOD_CACHE_CAPACITY": "0",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_S),  # 30 s by default
        }
        return super().environment(threads) | settings | patience

    @property
    def _controller(self) -> str:
        """An environment that has an MPI has Horovod over MPI (environment.yml), one without has it over Gloo."""
        return "MPI" if (BIN / "mpirun").exists() else "Gloo"

    def command(self, processes: int, program: list[str]) -> list[str]:
        return self._run(processes, [], program)

    def on_nodes(self, nodes: Mapping[str, int], interface: str, port: int, program: list[str]) -> dict[str, list[str]]:
        # It would keep what it finds out about networks for an hour, for all runs of this user.
        where = ["--disable-cache", "-H", ",".join(f"{node}:{count}" for node, count in nodes.items())]
        where += ["--network-interfaces", interface] if interface else []
        return {"": self._run(sum(nodes.values()), where, program)}

    def _run(self, processes: int, where: list[str], program: list[str]) -> list[str]:
        return [str(BIN / "horovodrun"), "-np", str(processes), f"--{self._controller.lower()}", *where, *program]

    def needs(self, device: str, shared: bool) -> set[str]:
        return {self._controller} | ({"NCCL"} if device == "cuda" else set())

    def on_hosts(self, addresses: list[str], interface: str, start: Start) -> list[dict[str, str]]:
        return json.loads(start([sys.executable, str(RENDEZVOUS), interface, *addresses]))


class TorchDist(Engine):
    def command(self, processes: int, program: list[str]) -> list[str]:
        return [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(processes), "--no-python", *program]

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

    def on_hosts(self, addresses: list[str], interface: str, start: Start) -> list[dict[str, str]]:
        shared = {"MASTER_ADDR": addresses[0], "MASTER_PORT": "29500", "WORLD_SIZE": str(len(addresses))}
        shared |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": interface}
        return [shared | {"RANK": str(rank)} for rank in range(len(addresses))]


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Horovod(
            "horovod",
            "HOROVOD_SIZE",
            "HOROVOD_LOCAL_SIZE",
            requires_all_ranks=True,
            killed=r"The first process to do so was:\nProcess name: (\d+)\nExit code: (?!143)1[2-5]\d",
            shares_gpus=False,
            built=HOROVOD_BUILT,
            package="horovod",
        ),
        TorchDist(
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
