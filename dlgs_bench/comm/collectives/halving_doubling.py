"""Halving-doubling all-reduce of 2^a ranks: as few bytes as a ring, in 2 log2 N rounds of one message.

In step q = 1, 2, 4, ... rank i meets rank i XOR q. Both own the same range; they split it, and each sends the half
that it gives up and adds the half that it keeps. Afterwards every rank owns one N-th, fully summed. The second phase
walks back: partners exchange what they own. Each entry is added up on one rank and copied to the others: all ranks end
with the same bits. Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005.
"""

from collections.abc import Iterator

from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges

ENTRY_BYTES = 4


def all_reduce(rank: int, world: int, tensor: Tensor) -> PeerExchanges:
    steps = list(_steps(rank, world, tensor.numel()))
    for peer, kept, given in steps:
        mine = tensor[kept]
        received = yield PeerExchange({peer: tensor[given]}, {peer: mine.numel()}, tensor.dtype)
        mine += received[peer]
    for peer, kept, given in reversed(steps):
        missing = tensor[given]
        received = yield PeerExchange({peer: tensor[kept]}, {peer: missing.numel()}, tensor.dtype)
        missing.copy_(received[peer])
    return tensor


def refuses(world: int) -> str | None:
    return f"{world} is no power of two" if world & (world - 1) else None


def rounds(world: int) -> int:
    return 2 * (world.bit_length() - 1)


def cost(rank: int, world: int, entries: int) -> tuple[int, int]:
    halves = (half for _, *both in _steps(rank, world, entries) for half in both)  # one in each phase
    lengths = [half.stop - half.start for half in halves]
    return sum(n > 0 for n in lengths), ENTRY_BYTES * sum(lengths)


def _steps(rank: int, world: int, entries: int) -> Iterator[tuple[int, slice, slice]]:
    """The first phase: in each step the partner, the half that this rank keeps, and the half that it gives up."""
    start, stop, q = 0, entries, 1
    while q < world:
        lower, upper = slice(start, (start + stop) // 2), slice((start + stop) // 2, stop)
        kept, given = (upper, lower) if rank & q else (lower, upper)
        yield rank ^ q, kept, given
        start, stop, q = kept.start, kept.stop, 2 * q
