"""Hybrid parallelism: the messages between the workers of a model's backbone and the workers of its head.

The first ranks train the backbone data-parallel, each on its own rows of the batch. The other ranks hold the fully
connected layers at the model's end, each some columns of every layer. All ranks take part in every round; a rank
without a message yields an empty round. Gradients of the head are not sent.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges


@dataclass(frozen=True)
class Layout:
    """The roles of ranks: the last ``heads`` of ``workers`` ranks hold the head, the others the backbone.

    ``rows``: rows of the batch on each backbone worker.
    """

    workers: int
    heads: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 < self.heads < self.workers:
            fix = f"use 1 to {self.workers - 1}" if self.workers > 1 else "use at least 2 workers"
            raise ValueError(f"heads: {self.heads} of {self.workers} workers cannot hold the head; {fix}")

    @property
    def backbone(self) -> range:
        return range(self.workers - self.heads)

    @property
    def head(self) -> range:
        return range(self.workers - self.heads, self.workers)

    def columns(self, rank: int, width: int) -> slice:
        """The columns that a head worker holds, out of a layer's ``width`` columns."""
        number = rank - self.head.start
        return slice(number * width // self.heads, (number + 1) * width // self.heads)

    def others(self, rank: int) -> list[int]:
        """The other head workers; an empty list for a backbone worker."""
        return [peer for peer in self.head if peer != rank] if rank in self.head else []


def gather_rows(layout: Layout, rank: int, mine: Tensor | None, width: int) -> PeerExchanges:
    """Gather the rows of all backbone workers on head workers, (all rows, width), in rank order.

    ``mine``: the rows of this backbone worker, (rows, width).
    """
    if rank in layout.backbone:
        yield PeerExchange(dict.fromkeys(layout.head, mine.reshape(-1)))
        return None
    got = yield PeerExchange({}, dict.fromkeys(layout.backbone, layout.rows * width))
    return torch.cat([got[peer].view(-1, width) for peer in layout.backbone])


def gather_columns(layout: Layout, rank: int, mine: Tensor | None, width: int) -> PeerExchanges:
    """Gather the columns of all head workers on head workers, (n, width).

    ``mine``: the columns of this head worker, (n, columns).
    """
    if rank in layout.backbone:
        yield PeerExchange()
        return None
    widths = {peer: _length(layout.columns(peer, width)) for peer in layout.head}
    receives = {peer: len(mine) * widths[peer] for peer in layout.others(rank)}
    got = yield PeerExchange(dict.fromkeys(receives, mine.reshape(-1)), receives)
    got[rank] = mine
    return torch.cat([got[peer].view(len(mine), widths[peer]) for peer in layout.head], 1)


def scatter_columns(layout: Layout, rank: int, mine: Tensor | None) -> PeerExchanges:
    """Sum over the head workers, and return the columns that this head worker holds.

    ``mine``: the addend of this head worker, (n, width).
    """
    if rank in layout.backbone:
        yield PeerExchange()
        return None
    parts = {peer: mine[:, layout.columns(peer, mine.shape[1])] for peer in layout.head}
    own = parts.pop(rank)
    sends = {peer: part.reshape(-1) for peer, part in parts.items()}
    got = yield PeerExchange(sends, dict.fromkeys(sends, own.numel()))
    got[rank] = own
    return _sum([got[peer].view(own.shape) for peer in layout.head])


def scatter_rows(layout: Layout, rank: int, mine: Tensor | None, width: int) -> PeerExchanges:
    """Return the sum over the head workers of this backbone worker's rows, (rows, width).

    ``mine``: the addend of this head worker, (all rows, width).
    """
    if rank in layout.head:
        yield PeerExchange({peer: part.reshape(-1) for peer, part in enumerate(mine.split(layout.rows))})
        return None
    got = yield PeerExchange({}, dict.fromkeys(layout.head, layout.rows * width))
    return _sum([got[peer].view(layout.rows, width) for peer in layout.head])


def _length(part: slice) -> int:
    return part.stop - part.start


def _sum(addends: list[Tensor]) -> Tensor:
    """The sum in rank order, so that it has the same bits in every run."""
    total = addends[0].clone()
    for addend in addends[1:]:
        total += addend
    return total
