"""Time stamps on the job's device, for which the host does not wait."""

import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dlgs_bench.device import moment, seconds

CACHES_BYTES = 2**27  # more than the caches of a processor core or a GPU


class Marks:
    """Takes time stamps: events on the device's current CUDA stream, or the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._other_data: Tensor | None = None

    def mark(self) -> Any:
        """A time stamp of now."""
        return moment(self._device)

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two time stamps, at least 0. On CUDA, call ``synchronize`` first."""
        return max(0.0, seconds(begin, end))

    def synchronize(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._device)

    def empty_caches(self) -> None:
        """Fill the caches with other data, as forward and backward do between two exchanges.

        This needs ``CACHES_BYTES`` of the device's memory until ``free``. Without this memory, nothing happens.
        """
        with suppress(torch.OutOfMemoryError):
            if self._other_data is None:
                self._other_data = torch.zeros(CACHES_BYTES // 4, dtype=torch.float32, device=self._device)
            self._other_data.add_(1)

    def free(self) -> None:
        """Free the memory of ``empty_caches``."""
        self._other_data = None

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds that ``work`` takes on the host and the device, with empty caches and no other work on the device."""
        self.empty_caches()
        self.synchronize()
        begin = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - begin

    def median(self, work: Callable[[], Any], repeats: int = 3) -> float:
        """The median seconds of several calls of ``work``, after one call for warm-up and compilation."""
        work()
        return median(self.timed(work) for _ in range(repeats))
