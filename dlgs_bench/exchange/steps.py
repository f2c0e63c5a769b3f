"""Requests and bookkeeping that several methods share."""

from collections.abc import Generator, Iterable, Sequence

import torch
from torch import Tensor

from dlgs_bench.exchange.method import PeerExchange, StepContext, Sum
from dlgs_bench.exchange.wire import Indices


def all_to_all(
    messages: Sequence[Tensor], context: StepContext, entries: int, lengths_known: bool
) -> Generator[PeerExchange, dict[int, Tensor], list[Tensor]]:
    """Send one message, shape (n,), to each rank, and return the messages from all ranks, in rank order.

    All messages have one dtype. ``entries``: the number of gradient entries that are sent. ``lengths_known``: whether
    all messages to a rank are as long as the rank's message to itself.
    """
    others = dict(enumerate(messages))
    own = others.pop(context.rank)
    lengths = dict.fromkeys(others, len(own) if lengths_known else None)
    received = yield PeerExchange(others, lengths, own.dtype, headers=not lengths_known, entries=entries)
    return [received.get(rank, own) for rank in range(context.workers)]


def sum_of(tensors: Sequence[Tensor]) -> Generator[Sum, Tensor, list[Tensor]]:
    """Sum several tensors over workers by one dense request, and return the sums in the tensors' shapes."""
    total = yield Sum(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = total.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def state_for(memory: dict[int, Tensor], index: int, like: Tensor) -> Tensor:
    """The tensor that ``memory`` holds for the bucket of this index: at first zeros with the shape of ``like``."""
    if index not in memory:
        memory[index] = torch.zeros_like(like)
    return memory[index]


def sum_messages(messages: Iterable[Tensor], out: Tensor) -> Tensor:
    """Write the sum of messages of ``wire.Indices``, added in order, to ``out``, shape (d,), and return it."""
    out.zero_()
    for message in messages:
        Indices.add(out, message)
    return out


def restore_unsent(residual: Tensor, values: Tensor, indices: Tensor, sent: Tensor) -> None:
    """Write values back to their indices in ``residual``, shape (d,), except where an index is one of ``sent``."""
    was_sent = torch.zeros_like(residual, dtype=torch.bool).index_fill_(0, sent.long(), True)
    unsent = ~was_sent[indices.long()]
    residual.index_copy_(0, indices[unsent].long(), values[unsent])
