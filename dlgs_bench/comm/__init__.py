"""The communicator contract, and the choice of an engine by name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges

if TYPE_CHECKING:
    from dlgs_bench.comm.thread import CommThread

Start = Callable[
    [PeerExchange], Callable[[], dict[int, Tensor]]
]  # begins a round; what it returns waits for the answer


class Pending(Protocol):
    """A collective under way; ``ended_at``: by ``time.perf_counter``, once it has ended and where that is known."""

    @property
    def ended_at(self) -> float | None: ...

    def done(self) -> bool: ...

    def wait(self) -> Any: ...


class Communicator(ABC):
    """Collectives over flat, contiguous tensors; calls pair up by their order on every worker.

    Asynchronous calls return a ``Pending`` at once; tensors handed over must not be touched before
    its ``wait`` has returned. Of rounds, ``sent_messages`` and ``sent_bytes`` count what this rank has sent.
    """

    rank: int
    world_size: int
    device: torch.device
    sent_messages: int = 0
    sent_bytes: int = 0
    requires_all_ranks: bool = True  # whether a round needs all ranks, even those that neither send nor receive in it
    _calls: CommThread  # where coroutines of rounds are driven

    def release(self) -> None:
        """End the thread, and the process group if it is this communicator's own; the engine goes on.

        The garbage collector may call it in the thread itself, so it does not wait.
        """
        self._calls.close(wait=False)

    @abstractmethod
    def start_allreduce(self, tensor: Tensor) -> Pending:
        """Sum ``tensor`` over all ranks, in place; ``wait`` returns it."""

    @abstractmethod
    def start_max(self, tensor: Tensor) -> Pending:
        """The elementwise maximum over all ranks, in place; ``wait`` returns it.

        Floats and integers of 32 or 64 bits.
        """

    @abstractmethod
    def start_allgather(self, tensor: Tensor, equal: bool = False) -> Pending:
        """Collect tensors of shape (n,), n of its own on each rank; ``wait`` returns them by rank.

        Any dtype, the same on all ranks. ``equal``: n is the same too, so that no length need travel.
        """

    def start_streams(self, streams: Sequence[PeerExchanges | None]) -> Pending:
        """Run coroutines of rounds side by side, a round of each under way at a time; ``wait`` returns their results.

        All ranks give equally many, and of each stream all ranks yield equally many rounds; but a rank may give None
        for one that has no message for it, unless a round needs ``requires_all_ranks``. The streams of several calls
        run one call after the other, in the order of the calls.
        """
        if self.requires_all_ranks and None in streams:
            raise ValueError(f"rank {self.rank} stays away from a stream, but {type(self).__name__} needs all ranks")
        return self._calls.submit(self._drive, streams, self._starter())

    def start_rounds(self, rounds: PeerExchanges) -> Pending:
        """Run one coroutine of rounds, of which all ranks yield equally many; ``wait`` returns its result."""
        return self._calls.submit(self._drive_one, rounds, self._starter())

    def start_round(self, peer_exchange: PeerExchange) -> Pending:
        """One round, in which every rank takes part; ``wait`` returns {peer: what it sent}."""
        return self.start_rounds(_only(peer_exchange))

    @abstractmethod
    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """Overwrite ``tensor`` with the root's, in place."""

    @abstractmethod
    def close(self) -> None:
        """Leave; no call may follow."""

    def record_completion_times(self) -> AbstractContextManager:
        """While the context is open, every ``Pending`` knows when it ended, on engines that must be asked too.

        Asking takes processor time: it is for a look at one iteration, not for timing.
        """
        return nullcontext()

    def allreduce(self, tensor: Tensor) -> Tensor:
        return self.start_allreduce(tensor).wait()

    def allgather(self, tensor: Tensor) -> list[Tensor]:
        return self.start_allgather(tensor).wait()

    def barrier(self) -> None:
        """Wait until all have come here, and their devices too."""
        self.allreduce(torch.zeros(1, device=self.device)).item()

    @abstractmethod
    def _starter(self) -> Start:
        """What begins the rounds of one call of ``start_streams`` or ``start_rounds``."""

    def _drive_one(self, rounds: PeerExchanges, start: Start) -> Any:
        return self._drive([rounds], start)[0]

    def _drive(self, streams: Sequence[PeerExchanges | None], start: Start) -> list:
        """Run coroutines to their ends.

        Streams take turns in one order on all ranks, so that a rank which waits for a round has begun every round
        that another can wait for before it.
        """
        results: list = [None] * len(streams)
        under_way: dict[int, Callable[[], Any]] = {n: lambda: None for n, one in enumerate(streams) if one is not None}
        while under_way:
            for number, answer in list(under_way.items()):
                try:
                    peer_exchange = streams[number].send(answer())
                except StopIteration as end:
                    results[number] = end.value
                    del under_way[number]
                else:
                    self._count(peer_exchange)
                    under_way[number] = start(peer_exchange)
        return results

    def _count(self, peer_exchange: PeerExchange) -> None:
        self.sent_messages += peer_exchange.sent_messages
        self.sent_bytes += peer_exchange.sent_bytes


def _only(peer_exchange: PeerExchange) -> PeerExchanges:
    return (yield peer_exchange)


def words(tensor: Tensor) -> Tensor:
    """The same memory as integers that every engine carries: int64 or int32 where an entry is one, else bytes."""
    return tensor.view({8: torch.int64, 4: torch.int32}.get(tensor.element_size(), torch.uint8))


def connect(engine: str, device: torch.device, shared: bool = False) -> Communicator:
    """Join the world that the launcher has set up, with the engine of that name; ``shared``: several processes use one
    GPU."""
    return importlib.import_module(f"dlgs_bench.comm.{engine}_engine").connect(device, shared)
