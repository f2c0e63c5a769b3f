"""The contract of a collective, which is a file in this folder with ``refuses`` and either of two sets of functions.

``refuses(world)`` returns None if the collective can run on ``world`` ranks, or else the reason why it cannot.

The messages of a *plain* collective depend only on the length of the tensor. It has

- ``all_reduce(rank, world, tensor)``: a coroutine that yields the rounds of one rank. It is resumed with the messages
  that the rank received, {peer: tensor}. It sums ``tensor``, shape (n,), over all ranks in place, and returns it.
- ``rounds(world)``: the number of rounds that each rank yields.
- ``cost(rank, world, entries)``: (messages, bytes) that one rank sends to sum ``entries`` float32 entries.

The messages of a collective with *streams* depend on the entries of the tensor. It has

- ``streams(rank, world, tensor, **options)``: a list of coroutines that run concurrently and together sum ``tensor``.
  An item is None if this rank does not take part in the stream. Each coroutine returns the number of entries that this
  rank has sent. The options come from the configuration.

A collective uses no engine, clock or thread. All ranks yield the same number of rounds; a rank without messages yields
an empty round. Every message is received in the round in which it is sent.

Example: in one round of a ring, rank 0 of 3 yields ``PeerExchange({1: chunk}, {2: len(other)})``. It sends ``chunk`` to
rank 1, and is resumed with ``{2: tensor}``, a tensor of ``len(other)`` entries from rank 2.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dlgs_bench import plugins

HEADER_BYTES = 8  # an int64 number of entries, with a message whose length its receiver cannot compute


@dataclass(frozen=True)
class PeerExchange:
    """One rank's part in one round of messages.

    ``sends``: peer -> message, shape (n,), which must not change before the round has ended.
    ``receives``: peer -> number of entries of its message.
    ``dtype``: the dtype of all messages of the round.
    ``headers``: whether lengths are sent, because receivers cannot compute them. All ranks set it, and all lengths in
    ``receives`` are None. Each message then has a header of 8 bytes with the number of its entries. Without headers, an
    empty message is not sent.
    ``entries``: the number of gradient entries that the messages represent, if a method makes this request.
    """

    sends: dict[int, Tensor] = field(default_factory=dict)
    receives: dict[int, int | None] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    headers: bool = False
    entries: int = 0

    def __post_init__(self) -> None:
        for peer, tensor in self.sends.items():
            if tensor.dtype != self.dtype:
                raise ValueError(f"PeerExchange: sends[{peer}]: {tensor.dtype} is not the dtype {self.dtype}")
        for peer, entries in self.receives.items():
            if (entries is None) != self.headers:
                expected = "None; headers carry the length" if self.headers else "a length; give one, or set headers"
                raise ValueError(f"PeerExchange: receives[{peer}]: {entries} is not {expected}")

    @property
    def sent_messages(self) -> int:
        return sum(self.headers or tensor.numel() > 0 for tensor in self.sends.values())

    @property
    def sent_bytes(self) -> int:
        """The bytes of all sent messages, with their headers."""
        header = HEADER_BYTES if self.headers else 0
        return sum(tensor.nbytes + header for tensor in self.sends.values())


PeerExchanges = Generator[PeerExchange, dict[int, Tensor], Any]


def sum_over_first(collective: ModuleType, rank: int, workers: int, mine: Tensor | None) -> PeerExchanges:
    """Sum the tensors of ranks 0 .. ``workers`` - 1 in place by a plain collective; other ranks yield empty rounds."""
    if rank < workers:
        return (yield from collective.all_reduce(rank, workers, mine))
    for _ in range(collective.rounds(workers)):
        yield PeerExchange()
    return None


def is_plain(collective: ModuleType) -> bool:
    """Whether the messages of a collective depend only on the length of the tensor."""
    return hasattr(collective, "all_reduce")


def plain(world: int) -> dict[str, ModuleType]:
    """All plain collectives that can run on ``world`` ranks, by name."""
    modules = {name: plugins.load("collectives", name) for name in plugins.names("collectives")}
    return {name: module for name, module in modules.items() if is_plain(module) and not module.refuses(world)}


def load(name: str, world: int) -> ModuleType:
    """The collective of this name; ValueError in one line if it does not exist or cannot run on ``world`` ranks."""
    known = plugins.names("collectives")
    if name not in known:
        raise ValueError(f"collective: {name} is not a file in dlgs_bench/comm/collectives; use {', '.join(known)}")
    if world < 1:
        raise ValueError(f"collective {name}: {world} is not a number of ranks; use at least 1")
    collective = plugins.load("collectives", name)
    if reason := collective.refuses(world):
        raise ValueError(f"collective {name} cannot run on {world} ranks: {reason}; use the engine's all-reduce")
    return collective
