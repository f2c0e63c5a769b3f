"""A thread for communication, next to the main thread, which computes."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch


class Pending(Protocol):
    """A collective in flight.

    ``ended_at``: when it ended, by ``time.perf_counter``; None before the end, or if the engine does not report it.
    """

    @property
    def ended_at(self) -> float | None: ...

    def done(self) -> bool: ...

    def wait(self) -> Any: ...


class CommThread:
    """Runs blocking calls in one thread, in the order of submission.

    It serves what an engine cannot do in one asynchronous call, such as lengths, then data, or several rounds. On CUDA
    the thread has its own stream. The stream waits for what the caller's stream held when the call was submitted.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="communication")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._device = self._stream.device if self._stream else device  # with its index, which a thread needs

    def submit(self, call: Callable, *args: Any) -> Pending:
        """Run ``call(*args)`` in the thread; ``wait`` of the result returns what it returns."""
        if self._stream is None:
            return _Future(self._pool, call, *args)
        ready = torch.cuda.current_stream(self._device).record_event()
        return _StreamFuture(self._device, self._pool, self._on_stream, ready, call, *args)

    def _on_stream(self, ready: torch.cuda.Event, call: Callable, *args: Any) -> tuple[Any, torch.cuda.Event]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            result = call(*args)
            return result, self._stream.record_event()

    def close(self, wait: bool = True) -> None:
        self._pool.shutdown(wait)


class _Future:
    """A call in the thread, without a CUDA stream."""

    ended_at: float | None = None

    def __init__(self, pool: ThreadPoolExecutor, call: Callable, *args: Any) -> None:
        self._future = pool.submit(self._run, call, *args)

    def _run(self, call: Callable, *args: Any) -> Any:
        result = call(*args)
        self.ended_at = time.perf_counter()
        return result

    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> Any:
        return self._future.result()


class _StreamFuture(_Future):
    """A call in the thread whose work is queued on the thread's CUDA stream."""

    def __init__(self, device: torch.device, *submitted: Any) -> None:
        super().__init__(*submitted)
        self._device = device

    def _run(self, call: Callable, *args: Any) -> Any:
        return call(*args)  # the work is only queued on the stream, so its end is not known here

    def done(self) -> bool:
        # Queued work counts as not done: to wait for it now would block the rest of backward.
        return self._future.done() and self._future.result()[1].query()

    def wait(self) -> Any:
        result, finished = self._future.result()
        here = torch.cuda.current_stream(self._device)
        here.wait_event(finished)
        for tensor in _tensors(result):
            tensor.record_stream(here)  # its memory belongs to the other stream, which must not reuse it too early
        return result


def _tensors(result: Any) -> list[torch.Tensor]:
    """The tensors in the result of a call: a tensor, None, or a list or dict of such results."""
    if isinstance(result, dict):
        result = result.values()
    if isinstance(result, torch.Tensor) or result is None:
        return [] if result is None else [result]
    return [tensor for part in result for tensor in _tensors(part)]
