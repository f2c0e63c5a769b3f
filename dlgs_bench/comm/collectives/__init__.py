"""The contract of a collective: a file in this folder. ``refuses(world)``: why it cannot run on so many ranks, or None.

What a *plain* one sends follows from the length of the tensor:

- ``all_reduce(rank, world, tensor)``: a coroutine that yields the rounds of one rank. It is resumed with what the
  rank received, {peer: tensor}, sums ``tensor``, shape (n,), over all ranks in place, and returns it.
- ``rounds(world)``: how many rounds each of so many ranks yields.
- ``cost(rank, world, entries)``: (messages, bytes) that one rank sends to sum ``entries`` of float32.

What another one sends depends on what is in the tensor. In the place of these three it has

- ``streams(rank, world, tensor, **options)``: several such coroutines that run side by side and sum ``tensor``
  together; None in the place of one that goes on without this rank. Each returns how many entries of it this rank has
  sent. Its options are those of a configuration.

It knows no engine, clock or thread. All ranks yield equally many rounds; a rank that has nothing to say in a
round yields an empty one. Every send has its receive in the same round.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dlgs_bench import plugins

HEADER_BYTES = 8  # an int64 count of entries


@dataclass(frozen=True)
class PeerExchange:
    """One rank's part in one round of messages.

    ``sends``: peer -> what it is sent, shape (n,); it must not change before the round has ended. ``receives``:
    peer -> how many entries come from it. ``dtype``: of all messages of the round.

    Where a receiver cannot know the length, all ranks set ``headers`` and every length in ``receives`` is None:
    every message of the round then follows a header of 8 bytes that counts its entries. Without headers a
    message of no entries is not sent.

    ``entries``: how many entries of the gradient the messages stand for, where a method asks for the round.
    """

    sends: dict[int, Tensor] = field(default_factory=dict)
    receives: dict[int, int | None] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    headers: bool = False
    entries: int = 0

    def __post_init__(self):
        for peer, tensor in self.sends.items():
            if tensor.dtype != self.dtype:
                raise ValueError(f"a round of {self.dtype} sends {tensor.dtype} to rank {peer}")
        for peer, entries in self.receives.items():
            if (entries is None) != self.headers:
                rule = "with headers, lengths to receive are None" if self.headers else "a length of None needs headers"
                raise ValueError(f"{rule}; rank {peer} is to send {entries}")

    @property
    def sent_messages(self) -> int:
        return sum(self.headers or tensor.numel() > 0 for tensor in self.sends.values())

    @property
    def sent_bytes(self) -> int:
        """The headers included."""
        return sum(tensor.nbytes + HEADER_BYTES * self.headers for tensor in self.sends.values())


PeerExchanges = Generator[PeerExchange, dict[int, Tensor], Any]


def sum_over_first(collective: ModuleType, rank: int, workers: int, mine: Tensor | None) -> PeerExchanges:
    """The sum of the tensors of ranks 0 .. ``workers`` - 1, in place, by a plain collective; the others only keep
    step."""
    if rank < workers:
        return (yield from collective.all_reduce(rank, workers, mine))
    for _ in range(collective.rounds(workers)):
        yield PeerExchange()
    return None


def is_plain(collective: ModuleType) -> bool:
    """Whether what it sends follows from the length of the tensor."""
    return hasattr(collective, "all_reduce")


def plain(world: int) -> dict[str, ModuleType]:
    """Name -> collective, of the plain ones that run on so many ranks."""
    found = {name: plugins.load("collectives", name) for name in plugins.names("collectives")}
    return {name: one for name, one in found.items() if is_plain(one) and not one.refuses(world)}


def load(name: str, world: int) -> ModuleType:
    """The collective of that name; ValueError in one line if there is none or it refuses so many ranks."""
    known = plugins.names("collectives")
    if name not in known:
        raise ValueError(f"no file dlgs_bench/comm/collectives/{name}.py; known: {', '.join(known)}")
    if world < 1:
        raise ValueError(f"{world} is not a number of ranks; give at least 1")
    collective = plugins.load("collectives", name)
    if why := collective.refuses(world):
        raise ValueError(f"collective {name} refuses {world} ranks: {why}")
    return collective
