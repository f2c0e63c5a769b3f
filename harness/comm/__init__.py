"""The communicator contract, and the choice of an engine by name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

ENGINES = ("horovod", "torch_dist", "local")


class Pending(Protocol):
    """A collective under way."""

    def done(self) -> bool: ...

    def wait(self) -> Any: ...


class Communicator(ABC):
    """Collectives over flat, contiguous tensors; calls pair up by their order on every worker.

    Asynchronous calls return a ``Pending`` at once; tensors handed over must not be touched before
    its ``wait`` has returned.
    """

    rank: int
    world_size: int
    device: torch.device

    @abstractmethod
    def start_allreduce(self, tensor: Tensor) -> Pending:
        """Sum ``tensor`` over all ranks, in place; ``wait`` returns it."""

    @abstractmethod
    def start_allgather(self, tensor: Tensor) -> Pending:
        """Collect tensors of shape (n,), n of its own on each rank; ``wait`` returns them by rank."""

    @abstractmethod
    def start_alltoall(self, tensors: list[Tensor]) -> Pending:
        """Send ``tensors[r]``, shape (n,), any n, to rank r; ``wait`` returns what came from each rank, by rank.

        One dtype on all ranks, that of the empty tensors included.
        """

    @abstractmethod
    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """Overwrite ``tensor`` with the root's, in place."""

    @abstractmethod
    def close(self) -> None:
        """Leave; no call may follow."""

    def allreduce(self, tensor: Tensor) -> Tensor:
        return self.start_allreduce(tensor).wait()

    def allgather(self, tensor: Tensor) -> list[Tensor]:
        return self.start_allgather(tensor).wait()

    def barrier(self) -> None:
        self.allreduce(torch.zeros(1, device=self.device))


def joined(tensors: list[Tensor]) -> Tensor:
    """The tensors end to end; where at most one has entries, without a copy."""
    filled = [t for t in tensors if t.numel()] or tensors[:1]
    return filled[0] if len(filled) == 1 else torch.cat(filled)


class OneAtATime:
    """Runs blocking collectives in a thread of its own, first come first served.

    For engines whose own asynchronous calls cannot chain two rounds (counts, then data). On CUDA
    the thread has a stream of its own, ordered after the caller's stream at the time of the call.
    """

    def __init__(self, device: torch.device):
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="communication")
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, call, *args) -> Pending:
        if self._stream is None:
            return _Future(self._pool.submit(call, *args))
        ready = torch.cuda.current_stream(self._device).record_event()
        return _StreamFuture(self._pool.submit(self._on_stream, ready, call, *args), self._device)

    def _on_stream(self, ready, call, *args):
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            result = call(*args)
            return result, self._stream.record_event()

    def close(self) -> None:
        self._pool.shutdown()


class _Future:
    def __init__(self, future):
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def wait(self):
        return self._future.result()


class _StreamFuture(_Future):
    def __init__(self, future, device):
        super().__init__(future)
        self._device = device

    def wait(self):
        result, finished = self._future.result()
        torch.cuda.current_stream(self._device).wait_event(finished)
        return result


def connect(engine: str, device: torch.device) -> Communicator:
    """Join the world that the launcher has set up, with the engine of that name."""
    return importlib.import_module(f"harness.comm.{engine}").connect(device)
