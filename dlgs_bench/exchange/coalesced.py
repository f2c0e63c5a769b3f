"""All-gathers that are sent as one message. Only accuracy runs use it, since it hides no communication.

A method that sends one message per layer, such as LAGS, then waits for the engine once per step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending
from dlgs_bench.exchange.packing import cut, join, split


class CoalescedGathers:
    """Collects all-gathers until an answer is waited for, and then sends them together.

    All ranks start the same all-gathers between two waits. ``start`` replaces ``Communicator.start_allgather``.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._waiting: list[_Gather] = []

    def start(self, tensor: Tensor, equal: bool = False) -> Pending:
        """Gather one tensor of shape (n,) from each rank, as ``Communicator.start_allgather`` does."""
        gather = _Gather(tensor, equal, self._send)
        self._waiting.append(gather)
        return gather

    def _send(self) -> None:
        """Send the tensors in one message. It starts with their lengths, unless these are equal on all ranks."""
        gathers, self._waiting = self._waiting, []
        tensors = [gather.tensor for gather in gathers]
        equal = all(gather.equal for gather in gathers)
        # Threads that share a GPU have a communicator of the CPU, but tensors of the GPU.
        lengths = [] if equal else [torch.tensor([t.nbytes for t in tensors], device=tensors[0].device)]
        received = self._comm.start_allgather(join(*lengths, *tensors), equal).wait()
        by_rank = [split(message, *tensors) if equal else _with_lengths(message, tensors) for message in received]
        for gather, *answer in zip(gathers, *by_rank, strict=True):
            gather.answer = answer


def _with_lengths(message: Tensor, own: list[Tensor]) -> list[Tensor]:
    """The tensors of a message that starts with their lengths; ``own``: this rank's, which have the same dtypes."""
    header, content = message.tensor_split([8 * len(own)])
    (lengths,) = cut(header, [header.nbytes], [torch.int64])
    return cut(content, lengths.tolist(), [tensor.dtype for tensor in own])


class _Gather:
    """One all-gather of several that are sent together. ``send`` sends them all, and sets ``answer`` of each."""

    ended_at: float | None = None
    answer: list[Tensor] | None = None

    def __init__(self, tensor: Tensor, equal: bool, send: Callable[[], None]) -> None:
        self.tensor, self.equal, self._send = tensor, equal, send

    def done(self) -> bool:
        return self.answer is not None

    def wait(self) -> list[Tensor]:
        if self.answer is None:
            self._send()
        return self.answer
