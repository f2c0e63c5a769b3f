"""All-gathers that are sent as one message. This is faster where no time is measured, since it hides no communication.

A method that sends one message per layer, such as LAGS, then waits for the engine once per step.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from dlgs_bench.comm import Communicator, Pending

ALIGNMENT = 8  # bytes: messages of any dtype begin at a multiple of this


class CoalescedGathers:
    """Collects all-gathers until an answer is waited for, and then sends them together.

    All ranks start the same all-gathers between two waits. ``start`` replaces ``Communicator.start_allgather``.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._open = _Gathers(comm)

    def start(self, tensor: Tensor, equal: bool = False) -> Pending:
        """Gather one tensor of shape (n,) from each rank, as ``Communicator.start_allgather`` does."""
        if self._open.answers is not None:
            self._open = _Gathers(self._comm)
        return self._open.add(tensor, equal)


class _Gathers:
    """All-gathers that are sent together. ``answers``: the answer to each, None before they are sent."""

    answers: list[list[Tensor]] | None = None

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._tensors: list[Tensor] = []
        self._equal = True

    def add(self, tensor: Tensor, equal: bool) -> Pending:
        self._tensors.append(tensor)
        self._equal = self._equal and equal
        return _Gather(self, len(self._tensors) - 1)

    def answer(self, index: int) -> list[Tensor]:
        if self.answers is None:
            self.answers = self._send()
        return self.answers[index]

    def _send(self) -> list[list[Tensor]]:
        """Send all tensors as bytes, in one message. It starts with their lengths, unless all ranks have the same."""
        parts = [tensor.view(torch.uint8) for tensor in self._tensors]
        lengths = [part.numel() for part in parts]
        header = [] if self._equal else [torch.tensor(lengths, device=self._comm.device).view(torch.uint8)]
        message = torch.cat([*header, *(pad(part, (0, -part.numel() % ALIGNMENT)) for part in parts)])
        received = self._comm.start_allgather(message, self._equal).wait()
        by_rank = [self._split(content, lengths) for content in received]
        return [list(answer) for answer in zip(*by_rank, strict=True)]

    def _split(self, content: Tensor, lengths: list[int]) -> list[Tensor]:
        """The tensors of one rank. ``lengths``: bytes of each tensor of this rank; another rank's are in its header."""
        if not self._equal:
            header, content = content.tensor_split([8 * len(lengths)])
            lengths = header.view(torch.int64).tolist()
        padded = content.split([n + -n % ALIGNMENT for n in lengths])
        return [part[:n].view(t.dtype) for part, n, t in zip(padded, lengths, self._tensors, strict=True)]


class _Gather:
    """One all-gather of several that are sent together. Before the answer is waited for, it is not done."""

    ended_at: float | None = None

    def __init__(self, gathers: _Gathers, index: int) -> None:
        self._gathers, self._index = gathers, index

    def done(self) -> bool:
        return self._gathers.answers is not None

    def wait(self) -> list[Tensor]:
        return self._gathers.answer(self._index)
