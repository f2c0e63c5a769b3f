"""Steps that several methods take on their way."""

from collections.abc import Generator, Iterable, Sequence

import torch
from torch import Tensor

from dlgs_bench.exchange.method import PeerExchange, StepContext, Sum
from dlgs_bench.exchange.wire import Indices


def to_each(
    messages: Sequence[Tensor], context: StepContext, entries: int, lengths_known: bool
) -> Generator[PeerExchange, dict[int, Tensor], list[Tensor]]:
    """Send each rank its message, all of one dtype, shape (n,); what each rank sent here, by rank.

    ``entries``: of the gradient, that are sent. ``lengths_known``: all messages to this rank are as long as its own.
    """
    others = dict(enumerate(messages))
    own = others.pop(context.rank)
    lengths = dict.fromkeys(others, len(own) if lengths_known else None)
    received = yield PeerExchange(others, lengths, own.dtype, headers=not lengths_known, entries=entries)
    return [received.get(rank, own) for rank in range(context.workers)]


def sum_of(tensors: Sequence[Tensor]) -> Generator[Sum, Tensor, list[Tensor]]:
    """The sums over workers of several tensors, each in its shape, by one dense request."""
    total = yield Sum(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = total.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def state_for(memory: dict[int, Tensor], index: int, like: Tensor) -> Tensor:
    """What ``memory`` has of the bucket of this index: at first zeros, shaped as ``like``."""
    if index not in memory:
        memory[index] = torch.zeros_like(like)
    return memory[index]


def added_up(messages: Iterable[Tensor], out: Tensor) -> Tensor:
    """Write the sum of messages of ``wire.Indices``, added in their order, to ``out``, shape (d,)."""
    out.zero_()
    for message in messages:
        Indices.add(out, message)
    return out


def put_back(residual: Tensor, values: Tensor, places: Tensor, sent: Tensor) -> None:
    """Put what was taken out of ``residual``, shape (d,), back, save where its place is among those ``sent``."""
    gone = torch.zeros_like(residual, dtype=torch.bool).index_fill_(0, sent.long(), True)
    back = ~gone[places.long()]
    residual.index_copy_(0, places[back].long(), values[back])
