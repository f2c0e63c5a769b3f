"""Time stamps on the job's device, for which the host does not wait."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


class Marks:
    """Takes time stamps: events on the current CUDA stream, or the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> Any:
        """A time stamp of now."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two time stamps, at least 0. On CUDA, call ``synchronize`` first."""
        return max(0.0, begin.elapsed_time(end) / 1e3 if self._cuda else end - begin)

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds that ``work`` takes on the host and the device, without other work on the device."""
        self.synchronize()
        begin = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - begin

    def median(self, work: Callable[[], Any], repeats: int = 3) -> float:
        """The median seconds of several calls of ``work``, after one call for warm-up and compilation."""
        work()
        return median(self.timed(work) for _ in range(repeats))
