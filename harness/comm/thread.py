"""A thread for communication beside the one that computes."""

from concurrent.futures import ThreadPoolExecutor

import torch

from harness.comm import Pending


class OneAtATime:
    """Runs blocking calls in a thread of its own, first come first served.

    For what an engine cannot do in one asynchronous call: counts, then data; one round after the other. On CUDA
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
