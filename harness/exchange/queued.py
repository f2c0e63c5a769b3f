"""Devices that run behind the host: it queues work for them, and to wait for a number of theirs costs time."""

import torch
from torch import Tensor

DEVICES = {"cuda"}


def is_queued(tensor: Tensor) -> bool:
    """Whether the host would have to wait for what is in ``tensor``."""
    return tensor.device.type in DEVICES


class Later:
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
