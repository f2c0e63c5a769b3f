"""The communicator contract, and ``connect``, which makes the communicator of an engine."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges
from dlgs_bench.comm.thread import CommThread, Pending

Wait = Callable[[], dict[int, Tensor]]  # waits for a round and returns {peer: message from this peer}
Start = Callable[[PeerExchange], Wait]  # starts a round


class Communicator(ABC):
    """Collectives over flat, contiguous tensors. Calls are paired by their order, so all ranks make the same calls.

    Asynchronous calls return a ``Pending`` immediately. Do not read or write the tensors of a call before its ``wait``
    has returned. ``sent_messages`` and ``sent_bytes`` count what this rank has sent in rounds.
    """

    rank: int
    world_size: int
    device: torch.device
    sent_messages: int = 0
    sent_bytes: int = 0
    polled: bool = False  # whether ``ended_at`` of a ``Pending`` needs ``record_completion_times``
    requires_all_ranks: bool = True  # whether a rank must join a round in which it neither sends nor receives
    _calls: CommThread  # runs coroutines of rounds

    def release(self) -> None:
        """Stop the thread, and destroy the process group if this communicator owns it; the engine keeps running.

        This does not wait, because the garbage collector may call it in the thread itself.
        """
        self._calls.close(wait=False)

    def stop_thread(self) -> None:
        """Wait for the calls in the thread, and stop it; the engine keeps running."""
        self._calls.close()

    @abstractmethod
    def start_allreduce(self, tensor: Tensor) -> Pending:
        """Sum ``tensor`` over all ranks, in place; ``wait`` returns it."""

    @abstractmethod
    def start_max(self, tensor: Tensor) -> Pending:
        """Take the elementwise maximum over all ranks, in place; ``wait`` returns it.

        The dtype is a float or an integer of 32 or 64 bits.
        """

    @abstractmethod
    def start_allgather(self, tensor: Tensor, equal: bool = False) -> Pending:
        """Gather one tensor of shape (n,) from each rank; ``wait`` returns a list in rank order.

        All ranks use the same dtype, which may be any. n may differ between ranks. With ``equal``, n is the same on all
        ranks, so no lengths are sent.
        """

    def start_streams(self, streams: Sequence[PeerExchanges | None]) -> Pending:
        """Run coroutines of rounds concurrently, each with one round in flight; ``wait`` returns a list of results.

        All ranks pass the same number of streams, and the coroutines of a stream yield the same number of rounds on
        all ranks. A rank without messages in a stream may pass None, unless the engine has ``requires_all_ranks``. The
        streams of a second call start when the streams of the first call have ended.
        """
        if self.requires_all_ranks and None in streams:
            needs = f"{type(self).__name__} needs a coroutine on every rank"
            raise ValueError(f"start_streams: rank {self.rank} gave None for a stream; {needs}")
        return self._calls.submit(self._drive, streams, self._starter())

    def start_rounds(self, rounds: PeerExchanges) -> Pending:
        """Run one coroutine of rounds; ``wait`` returns its result. All ranks yield the same number of rounds."""
        return self._calls.submit(self._drive_one, rounds, self._starter())

    def start_round(self, peer_exchange: PeerExchange) -> Pending:
        """Start one round, in which every rank takes part; ``wait`` returns {peer: message from this peer}."""
        return self._calls.submit(self._run_round, peer_exchange, self._starter())

    @abstractmethod
    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """Overwrite ``tensor`` with the tensor of rank ``root``, in place."""

    @abstractmethod
    def close(self) -> None:
        """Leave the world; no call may follow."""

    def record_completion_times(self) -> AbstractContextManager:
        """Set ``ended_at`` on every ``Pending`` while the context is open, even if the engine must be polled for it.

        Polling takes processor time. Use this to examine one iteration, not for timing.
        """
        return nullcontext()

    def allreduce(self, tensor: Tensor) -> Tensor:
        return self.start_allreduce(tensor).wait()

    def allgather(self, tensor: Tensor) -> list[Tensor]:
        return self.start_allgather(tensor).wait()

    def barrier(self) -> None:
        """Wait until all ranks have called this, and until their devices have done the work that was queued before."""
        self.allreduce(torch.zeros(1, device=self.device)).item()

    @abstractmethod
    def _starter(self) -> Start:
        """The function that starts the rounds of one call of ``start_streams``, ``start_rounds`` or ``start_round``."""

    def _run_round(self, peer_exchange: PeerExchange, start: Start) -> dict[int, Tensor]:
        self._count(peer_exchange)
        return start(peer_exchange)()

    def _drive_one(self, rounds: PeerExchanges, start: Start) -> Any:
        return self._drive([rounds], start)[0]

    def _drive(self, streams: Sequence[PeerExchanges | None], start: Start) -> list:
        """Run coroutines to their ends, and return their results.

        All ranks resume the streams in the same order. Otherwise two ranks could wait for each other, each in a round
        that the other rank has not started.
        """
        results: list = [None] * len(streams)
        in_flight: dict[int, Callable[[], Any]] = {
            number: lambda: None for number, stream in enumerate(streams) if stream is not None
        }
        while in_flight:
            for number, wait in list(in_flight.items()):
                try:
                    peer_exchange = streams[number].send(wait())
                except StopIteration as end:
                    results[number] = end.value
                    del in_flight[number]
                else:
                    self._count(peer_exchange)
                    in_flight[number] = start(peer_exchange)
        return results

    def _count(self, peer_exchange: PeerExchange) -> None:
        self.sent_messages += peer_exchange.sent_messages
        self.sent_bytes += peer_exchange.sent_bytes


def as_integers(tensor: Tensor) -> Tensor:
    """A view of the same memory as integers that every engine supports: int64, int32, or else uint8."""
    by_bytes = {8: torch.int64, 4: torch.int32}
    return tensor.view(by_bytes.get(tensor.element_size(), torch.uint8))


def distinct(tensor: Tensor) -> Tensor:
    """The view of a tensor without the dimensions along which it repeats the same memory, as ``expand`` makes them."""
    return tensor.detach()[tuple(slice(None) if stride else slice(1) for stride in tensor.stride())]


def broadcast_all(comm: Communicator, tensors: Iterable[Tensor]) -> None:
    """Give every worker the tensors of rank 0. They may have any dtype and any layout in memory, also with overlaps."""
    with torch.no_grad():
        for tensor in tensors:
            own = distinct(tensor)
            entries = own.contiguous().view(-1)
            if own.numel():
                comm.broadcast(as_integers(entries))
            if not own.is_contiguous():
                own.copy_(entries.view(own.shape))


def connect(engine: str, device: torch.device, shared: bool = False) -> Communicator:
    """Join the world that the launcher has set up, and return its communicator.

    ``engine``: a name in ``dlgs_bench.engines``. ``shared``: whether several processes use one GPU.
    """
    return importlib.import_module(f"dlgs_bench.comm.{engine}_engine").connect(device, shared)
