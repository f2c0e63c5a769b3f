"""Asynchronous devices: the host only queues their work, so to read a value back it must wait for them."""

import torch
from torch import Tensor

DEVICES = {"cuda"}


def is_async(tensor: Tensor) -> bool:
    """Whether the host would have to wait to read ``tensor``."""
    return tensor.device.type in DEVICES


def read(numbers: list[int | Tensor]) -> list[int]:
    """The numbers as integers. Tensors, of shape (1,), are on one device; the host waits once for all of them."""
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    values = iter(torch.cat(tensors).tolist() if tensors else ())
    return [next(values) if isinstance(number, Tensor) else number for number in numbers]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done the work on its current stream; on a CPU, return immediately."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class DeferredScalar:
    """A number, shape (1,), that the host reads one step later, when its copy to the host is complete."""

    def __init__(self, number: Tensor) -> None:
        self._number, self._copied = number, None
        if number.is_cuda:
            on_host = torch.empty(number.shape, dtype=number.dtype, device="cpu", pin_memory=True)
            self._number = on_host.copy_(number, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(number.device))

    def read(self) -> int:
        if self._copied is not None:
            self._copied.synchronize()
        return int(self._number)
