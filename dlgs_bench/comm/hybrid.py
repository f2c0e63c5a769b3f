"""Hybrid parallelism: the messages between the workers of a model's backbone and those of its head.

The first ranks train the backbone data-parallel, each on rows of its own. The others hold the fully connected layers
at the model's end, each some columns of every layer. Five kinds of rounds join them, in which all ranks take part, if
only by an empty round. Gradients of the head never travel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges


@dataclass(frozen=True)
class Layout:
    """``heads`` of ``workers`` hold the head, the last ranks; each of the others has ``rows`` rows of the batch."""

    workers: int
    heads: int
    rows: int

    def __post_init__(self):
        if not 0 < self.heads < self.workers:
            most = f"give 1 to {self.workers - 1}" if self.workers > 1 else "give at least 2 workers"
            raise ValueError(
                f"{self.heads} of {self.workers} workers for the head, the others for the backbone; {most}"
            )

    @property
    def backbone(self) -> range:
        return range(self.workers - self.heads)

    @property
    def head(self) -> range:
        return range(self.workers - self.heads, self.workers)

    def columns(self, rank: int, width: int) -> slice:
        """Which of a layer's ``width`` columns a head worker holds."""
        place = rank - self.head.start
        return slice(place * width // self.heads, (place + 1) * width // self.heads)

    def others(self, rank: int) -> list[int]:
        """The head workers beside this one; none for a backbone worker."""
        return [peer for peer in self.head if peer != rank] if rank in self.head else []


def gather_rows(layout: Layout, rank: int, mine: Tensor | None, width: int) -> PeerExchanges:
    """Every head worker gets the rows of all backbone workers, (workers' rows, width), in rank order.

    ``mine``: a backbone worker's, (rows, width).
    """
    if rank in layout.backbone:
        yield PeerExchange(dict.fromkeys(layout.head, mine.reshape(-1)))
        return None
    got = yield PeerExchange({}, dict.fromkeys(layout.backbone, layout.rows * width))
    return torch.cat([got[peer].view(-1, width) for peer in layout.backbone])


def gather_columns(layout: Layout, rank: int, mine: Tensor | None, width: int) -> PeerExchanges:
    """Every head worker gets the columns of all of them, (n, width); ``mine``: its own, (n, columns)."""
    if rank in layout.backbone:
        yield PeerExchange()
        return None
    widths = {peer: _length(layout.columns(peer, width)) for peer in layout.head}
    receives = {peer: len(mine) * widths[peer] for peer in layout.others(rank)}
    got = yield PeerExchange(dict.fromkeys(receives, mine.reshape(-1)), receives)
    got[rank] = mine
    return torch.cat([got[peer].view(len(mine), widths[peer]) for peer in layout.head], 1)


def scatter_columns(layout: Layout, rank: int, mine: Tensor | None) -> PeerExchanges:
    """The sum over the head workers, of which each gets the columns it holds; ``mine``: its addend, (n, width)."""
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
    """The sum over the head workers, of which each backbone worker gets its rows, (rows, width).

    ``mine``: a head worker's addend, (workers' rows, width).
    """
    if rank in layout.head:
        yield PeerExchange({peer: part.reshape(-1) for peer, part in enumerate(mine.split(layout.rows))})
        return None
    got = yield PeerExchange({}, dict.fromkeys(layout.head, layout.rows * width))
    return _sum([got[peer].view(layout.rows, width) for peer in layout.head])


def _length(part: slice) -> int:
    return part.stop - part.start


def _sum(addends: list[Tensor]) -> Tensor:
    """Added in rank order: every bit repeats."""
    total = addends[0].clone()
    for addend in addends[1:]:
        total += addend
    return total
