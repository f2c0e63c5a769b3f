"""Marks of time on the job's device, which do not make the host wait."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


class Marks:
    """``mark`` notes a moment: an event on the current CUDA stream, or the host's clock on a CPU."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks, 0 if they are in another order; on CUDA, after ``synchronize``."""
        return max(0.0, begin.elapsed_time(end) / 1e3 if self._cuda else end - begin)

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds that ``work`` takes on the host and the device, alone."""
        self.synchronize()
        begin = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - begin

    def median(self, work: Callable[[], Any], repeats: int = 3) -> float:
        """The median of several calls, after one call that compiles and warms up."""
        work()
        return median(self.timed(work) for _ in range(repeats))
