"""Horovod: its background thread negotiates and runs the collectives (Gloo or MPI; NCCL)."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending, Start, as_integers
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.comm.thread import CommThread

POLL_INTERVAL_S = 50e-6


def connect(device: torch.device, shared: bool) -> "Horovod":
    """Initialise Horovod, and return its communicator. ``shared`` is always False: see ``dlgs_bench.engines``."""
    hvd.init()
    if device.type == "cuda":
        torch.cuda.set_device(hvd.local_rank())
    return Horovod(device)


class _Handle:
    """An operation in flight. ``watched``: whether a thread polls it; then ``done`` does not."""

    def __init__(self, handle: int, finish: Callable[..., Any], watched: bool) -> None:
        self._handle, self._finish, self.watched = handle, finish, watched
        self._result = None
        self.ended_at: float | None = None

    def poll(self) -> bool:
        """Return whether the operation has ended, and set ``ended_at`` if it has."""
        if self.ended_at is None and hvd.poll(self._handle):
            self.ended_at = time.perf_counter()
        return self.ended_at is not None

    def done(self) -> bool:
        return self.ended_at is not None if self.watched else self.poll()

    def wait(self) -> Any:
        if self._handle is not None:  # a handle is invalid after ``synchronize``
            # Horovod's ``synchronize`` spins. On few cores, it would occupy the core that Horovod's threads need.
            while not self.done():
                time.sleep(POLL_INTERVAL_S)
            self._result = self._finish(hvd.synchronize(self._handle))
            self._handle = None
        return self._result


class Horovod(Communicator):
    """A communicator of all Horovod processes. Several in one process are independent: their requests' names differ."""

    polled = True
    _made = itertools.count()  # numbers the communicators; all workers make them in the same order

    def __init__(self, device: torch.device) -> None:
        self.rank, self.world_size, self.device = hvd.rank(), hvd.size(), device
        # All workers make the same calls in the same order, so a call has the same unique name on all workers.
        number = next(self._made)
        self._names = (f"{number}.request.{i}" for i in itertools.count())
        self._calls = CommThread(device)
        self._watched: list[_Handle] | None = None  # the operations in flight, while a thread polls them

    def _in_flight(self, handle: int, finish: Callable[..., Any]) -> _Handle:
        pending = _Handle(handle, finish, self._watched is not None)
        if self._watched is not None:
            self._watched.append(pending)
        return pending

    @contextmanager
    def record_completion_times(self) -> Iterator[None]:
        """Poll all operations in a thread while the context is open: Horovod has no callback for their end."""
        self._watched, ended = [], threading.Event()

        def watch() -> None:
            while not ended.wait(POLL_INTERVAL_S):
                for pending in list(self._watched):
                    if pending.poll():
                        self._watched.remove(pending)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            for pending in self._watched:  # after an error in the context; from now on they poll themselves
                pending.watched = False
            self._watched = None

    def start_allreduce(self, tensor: Tensor) -> _Handle:
        return self._reduce(tensor, hvd.Sum)

    def start_max(self, tensor: Tensor) -> _Handle:
        return self._reduce(tensor, hvd.Max)

    def _reduce(self, tensor: Tensor, op: int) -> _Handle:
        # Each tensor is a group, because the launcher disables fusion across groups. Which tensors Horovod fuses
        # depends on timing, and fusion changes the order of additions. All-gathers add nothing and may be fused.
        handle = hvd.grouped_allreduce_async_([tensor], op=op, name=next(self._names))
        return self._in_flight(handle, lambda tensors: tensors[0])

    def start_allgather(self, tensor: Tensor, equal: bool = False) -> _Handle:
        if equal:
            handle = hvd.allgather_async(as_integers(tensor), name=next(self._names))
            return self._in_flight(handle, lambda gathered: list(gathered.view(tensor.dtype).split(tensor.numel())))
        # Horovod negotiates the lengths, but does not return them, so each message starts with its length.
        mine = as_integers(tensor)
        header = torch.tensor([mine.numel()], device=tensor.device).view(mine.dtype)
        handle = hvd.allgather_async(torch.cat([header, mine]), name=next(self._names))
        return self._in_flight(handle, lambda gathered: self._split(gathered, header.numel(), tensor.dtype))

    def _split(self, gathered: Tensor, header: int, dtype: torch.dtype) -> list[Tensor]:
        """The messages in rank order; ``header``: the elements of a message's length."""
        parts, stop = [], 0
        for _ in range(self.world_size):
            start = stop + header
            length = int(gathered[stop:start].clone().view(torch.int64))  # a clone is aligned
            stop = start + length
            parts.append(gathered[start:stop].view(dtype))
        return parts

    def _starter(self) -> Start:
        # Rounds are named after this call. So they are paired correctly, whatever other calls are in flight.
        call = next(self._names)
        names = (f"{call}.{i}" for i in itertools.count())
        return lambda peer_exchange: self._round(peer_exchange, next(names)).wait

    def start_round(self, peer_exchange: PeerExchange) -> Pending:
        self._count(peer_exchange)
        return self._round(peer_exchange, next(self._names))

    def _round(self, peer_exchange: PeerExchange, name: str) -> _Handle:
        """Start an all-to-all in which ranks that exchange no message send nothing to each other.

        Horovod has no messages between two ranks. All ranks negotiate with rank 0, which takes one or two cycles. The
        all-to-all returns the lengths, with or without headers.
        """
        nothing = torch.empty(0, dtype=peer_exchange.dtype, device=self.device)
        sends = [as_integers(peer_exchange.sends.get(peer, nothing)) for peer in range(self.world_size)]
        splits = [t.numel() for t in sends]
        handle = hvd.alltoall_async(_joined(sends), splits=splits, name=name)
        return self._in_flight(handle, lambda result: self._received(peer_exchange, *result))

    def _received(self, peer_exchange: PeerExchange, messages: Tensor, splits: Tensor) -> dict[int, Tensor]:
        received = [t.view(peer_exchange.dtype) for t in messages.split(splits.tolist())]
        for peer, entries in peer_exchange.receives.items():
            if entries not in (None, received[peer].numel()):
                got = f"{received[peer].numel()} entries from rank {peer}"
                raise ValueError(f"rank {self.rank} received {got}, but expected {entries}")
        return {peer: received[peer] for peer in peer_exchange.receives}

    @staticmethod
    def refuses_join(error: Exception) -> bool:
        """Whether Horovod could not run a collective because a worker is in hvd.join."""
        return isinstance(error, HorovodInternalError) and "with Join" in str(error)

    @staticmethod
    def join() -> None:
        """hvd.join: returns as soon as all workers have called it, so none waits for the others."""
        hvd.join()

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        hvd.broadcast_(tensor, root, name=next(self._names))

    def close(self) -> None:
        self._calls.close()
        hvd.shutdown()


def _joined(tensors: list[Tensor]) -> Tensor:
    """The concatenation of the tensors; if at most one has elements, it is not copied."""
    filled = [t for t in tensors if t.numel()] or tensors[:1]
    return filled[0] if len(filled) == 1 else torch.cat(filled)
