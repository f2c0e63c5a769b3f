"""Horovod: its own background thread negotiates and runs the collectives (Gloo or MPI; NCCL)."""

import itertools
import threading
import time
from contextlib import contextmanager

import horovod.torch as hvd
import torch
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending, Start, words
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.comm.thread import CommThread

PAUSE_S = 50e-6


def connect(device: torch.device, shared: bool) -> "Horovod":
    """``shared``: never, see ``dlgs_bench.engines``."""
    hvd.init()
    if device.type == "cuda":
        torch.cuda.set_device(hvd.local_rank())
    return Horovod(device)


class _Handle:
    """``watched``: a thread asks when it ends; then nobody else does."""

    def __init__(self, handle, finish, watched: bool):
        self._handle, self._finish, self._watched = handle, finish, watched
        self._result = None
        self.ended_at: float | None = None

    def ask(self) -> bool:
        """Whether it has ended; if so, note when."""
        if self.ended_at is None and hvd.poll(self._handle):
            self.ended_at = time.perf_counter()
        return self.ended_at is not None

    def done(self) -> bool:
        return self.ended_at is not None if self._watched else self.ask()

    def wait(self):
        if self._handle is not None:  # Horovod forgets a handle once it was waited for
            # Horovod waits by spinning, which on few cores takes the core its own threads need.
            while not self.done():
                time.sleep(PAUSE_S)
            self._result = self._finish(hvd.synchronize(self._handle))
            self._handle = None
        return self._result


class Horovod(Communicator):
    """Horovod's processes. Several in one process do not disturb each other: their requests have other names."""

    _made = itertools.count()  # the same on all workers, which make them in the same order

    def __init__(self, device: torch.device):
        self.rank, self.world_size, self.device = hvd.rank(), hvd.size(), device
        # Unique names, the same on all workers, since all make the same calls in the same order.
        own = next(self._made)
        self._names = (f"{own}.request.{i}" for i in itertools.count())
        self._calls = CommThread(device)
        self._watched: list[_Handle] | None = None  # what is under way, where a thread watches for its end

    def _under_way(self, handle, finish) -> _Handle:
        pending = _Handle(handle, finish, self._watched is not None)
        if self._watched is not None:
            self._watched.append(pending)
        return pending

    @contextmanager
    def record_completion_times(self):
        """Horovod calls nobody when an operation ends, so a thread asks, some thousand times a second."""
        self._watched, ended = [], threading.Event()

        def watch() -> None:
            while not ended.wait(PAUSE_S):
                for pending in list(self._watched):
                    if pending.ask():
                        self._watched.remove(pending)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._watched = None

    def start_allreduce(self, tensor: Tensor) -> _Handle:
        return self._reduce(tensor, hvd.Sum)

    def start_max(self, tensor: Tensor) -> _Handle:
        return self._reduce(tensor, hvd.Max)

    def _reduce(self, tensor: Tensor, op) -> _Handle:
        # A group of one: the launcher forbids fusion across groups, since what is fused with what
        # depends on timing and decides the order of additions. All-gathers add nothing and may fuse.
        handle = hvd.grouped_allreduce_async_([tensor], op=op, name=next(self._names))
        return self._under_way(handle, lambda tensors: tensors[0])

    def start_allgather(self, tensor: Tensor, equal: bool = False) -> _Handle:
        if equal:
            handle = hvd.allgather_async(words(tensor), name=next(self._names))
            return self._under_way(handle, lambda gathered: list(gathered.view(tensor.dtype).split(tensor.numel())))
        # Horovod exchanges the lengths when it negotiates, but hides them: send them along, first.
        mine = words(tensor)
        header = torch.tensor([mine.numel()], device=tensor.device).view(mine.dtype)
        handle = hvd.allgather_async(torch.cat([header, mine]), name=next(self._names))
        return self._under_way(handle, lambda gathered: self._split(gathered, header.numel(), tensor.dtype))

    def _split(self, gathered: Tensor, header: int, dtype: torch.dtype) -> list[Tensor]:
        parts, place = [], 0
        for _ in range(self.world_size):
            start = place + header
            place = start + int(gathered[place:start].clone().view(torch.int64))  # cloned, it is aligned
            parts.append(gathered[start:place].view(dtype))
        return parts

    def _starter(self) -> Start:
        # Named after this call, the rounds of two workers pair up whatever else either has under way.
        call = next(self._names)
        names = (f"{call}.{i}" for i in itertools.count())
        return lambda peer_exchange: self._round(peer_exchange, next(names)).wait

    def start_round(self, peer_exchange: PeerExchange) -> Pending:
        self._count(peer_exchange)
        return self._round(peer_exchange, next(self._names))

    def _round(self, peer_exchange: PeerExchange, name: str) -> _Handle:
        """An all-to-all that is empty between all others; it brings the lengths, with or without headers.

        Horovod has no messages between two ranks: everybody negotiates with rank 0, which takes a cycle or two.
        """
        nothing = torch.empty(0, dtype=peer_exchange.dtype, device=self.device)
        sends = [words(peer_exchange.sends.get(peer, nothing)) for peer in range(self.world_size)]
        splits = [t.numel() for t in sends]  # Horovod tells each rank its own when it negotiates
        handle = hvd.alltoall_async(_joined(sends), splits=splits, name=name)
        return self._under_way(handle, lambda result: self._received(peer_exchange, *result))

    def _received(self, peer_exchange: PeerExchange, messages: Tensor, splits: Tensor) -> dict[int, Tensor]:
        received = [t.view(peer_exchange.dtype) for t in messages.split(splits.tolist())]
        for peer, entries in peer_exchange.receives.items():
            if entries not in (None, received[peer].numel()):
                got = f"rank {self.rank} got {received[peer].numel()} entries from rank {peer}"
                raise ValueError(f"{got}, but expected {entries}")
        return {peer: received[peer] for peer in peer_exchange.receives}

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        hvd.broadcast_(tensor, root, name=next(self._names))

    def close(self) -> None:
        self._calls.close()
        hvd.shutdown()


def _joined(tensors: list[Tensor]) -> Tensor:
    """The tensors end to end; where at most one has entries, without a copy."""
    filled = [t for t in tensors if t.numel()] or tensors[:1]
    return filled[0] if len(filled) == 1 else torch.cat(filled)
