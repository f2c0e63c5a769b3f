"""Asynchronous devices: the host queues their work, and to wait for a number of theirs costs time."""

import torch
from torch import Tensor

DEVICES = {"cuda"}


def is_async(tensor: Tensor) -> bool:
    """Whether the host would have to wait for what is in ``tensor``."""
    return tensor.device.type in DEVICES


def read(numbers: list[int | Tensor]) -> list[int]:
    """Integers, some of them tensors of shape (1,) on one device: the host waits once for all of these."""
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    found = iter(torch.cat(tensors).tolist() if tensors else ())
    return [next(found) if isinstance(number, Tensor) else number for number in numbers]


def catch_up(device: torch.device) -> None:
    """Wait until the device has done what is queued on its current stream; a CPU has."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class DeferredScalar:
    """A number, shape (1,), that the host reads a step later: its copy has long arrived, so that nobody waits."""

    def __init__(self, number: Tensor):
        self._number, self._copied = number, None
        if number.is_cuda:
            there = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
            self._number = there.copy_(number, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> int:
        if self._copied is not None:
            self._copied.synchronize()
        return int(self._number)
