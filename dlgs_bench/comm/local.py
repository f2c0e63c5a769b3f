"""Workers as threads of one process, for tests and benchmarks, and one worker without a process group.

Reductions add in rank order. A round that would hang is an error.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending, Start
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.comm.thread import CommThread

CPU = torch.device("cpu")


class _Meeting:
    """A slot for the tensor of each thread of a world, and a barrier for all threads."""

    def __init__(self, world_size: int) -> None:
        self.slots: list = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=600)


class Local(Communicator):
    """The communicator of one thread, for tensors on ``device``."""

    def __init__(self, rank: int, meeting: _Meeting, device: torch.device = CPU) -> None:
        self.rank, self.world_size = rank, len(meeting.slots)
        self.device = device
        self._meeting = meeting
        self._calls = CommThread(self.device)

    def _exchange(self, tensor: Tensor) -> list[Tensor]:
        return self._meet(tensor.clone())

    def _round(self, peer_exchange: PeerExchange) -> Callable[[], dict[int, Tensor]]:
        everyone = self._meet(
            replace(peer_exchange, sends={peer: t.clone() for peer, t in peer_exchange.sends.items()})
        )
        if complaint := mismatch(everyone):
            raise ValueError(complaint)
        return lambda: {peer: everyone[peer].sends[self.rank] for peer in peer_exchange.receives}

    def _meet(self, mine: Any) -> list:
        self._meeting.slots[self.rank] = mine
        self._meeting.barrier.wait()
        everyone = list(self._meeting.slots)
        self._meeting.barrier.wait()
        return everyone

    def _reduce(self, tensor: Tensor, two: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return tensor.copy_(reduce(two, self._exchange(tensor)))

    def start_allreduce(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, torch.add)

    def start_max(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, torch.maximum)

    def _starter(self) -> Start:
        return self._round

    def start_allgather(self, tensor: Tensor, equal: bool = False) -> Pending:
        return self._calls.submit(self._gather, tensor, equal)

    def _gather(self, tensor: Tensor, equal: bool) -> list[Tensor]:
        everyones = self._exchange(tensor)
        lengths = [t.numel() for t in everyones]
        if equal and len(set(lengths)) > 1:
            raise ValueError(f"start_allgather: the lengths {lengths} are not equal; call it with equal=False")
        return everyones

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        tensor.copy_(self._calls.submit(self._exchange, tensor).wait()[root])

    def close(self) -> None:
        self._calls.close()


def single(device: torch.device = CPU) -> Local:
    """The communicator of one worker, for tensors on ``device``."""
    return Local(0, _Meeting(1), device)


def run_workers(world_size: int, work: Callable[[Communicator], object]) -> list:
    """Run ``work(communicator)`` in ``world_size`` threads, and return the results in rank order.

    An error in one worker breaks the barrier of the others. The first error is raised here.
    """
    meeting = _Meeting(world_size)

    def worker(rank: int) -> object:
        comm = Local(rank, meeting)
        try:
            return work(comm)
        except BaseException:
            meeting.barrier.abort()
            raise
        finally:
            comm.close()

    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(worker, rank) for rank in range(world_size)]
    errors = [f.exception() for f in futures if f.exception()]
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return [f.result() for f in futures]


def mismatch(rounds: Sequence[PeerExchange]) -> str | None:
    """The first error in one round of all ranks, such as a send that no rank receives; None if there is none."""
    for rank, peer_exchange in enumerate(rounds):
        for peer, tensor in peer_exchange.sends.items():
            to = f"rank {rank} sends to rank {peer}"
            if peer == rank or not 0 <= peer < len(rounds) or rank not in rounds[peer].receives:
                return f"{to}, but rank {peer} does not receive from it"
            expected, entries = rounds[peer], rounds[peer].receives[rank]
            if (peer_exchange.dtype, peer_exchange.headers) != (expected.dtype, expected.headers):
                return f"{to} {_kind(peer_exchange)}, but rank {peer} expects {_kind(expected)}"
            if entries not in (None, tensor.numel()):
                return f"{to} {tensor.numel()} entries, but rank {peer} expects {entries}"
        for peer in peer_exchange.receives:
            if not 0 <= peer < len(rounds) or rank not in rounds[peer].sends:
                return f"rank {rank} receives from rank {peer}, but rank {peer} does not send to it"
    return None


def _kind(peer_exchange: PeerExchange) -> str:
    return f"{peer_exchange.dtype} {'with' if peer_exchange.headers else 'without'} headers"
