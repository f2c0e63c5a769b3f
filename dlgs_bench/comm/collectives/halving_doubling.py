"""Halving-doubling all-reduce of 2^a ranks: as few bytes as a ring, in 2 log2 N rounds of one message.

In step q = 1, 2, 4, ... the partner of rank i is rank i XOR q. Both partners hold partial sums of the same range and
split it into halves. Each keeps one half, sends the other half, and adds the half that it receives. After log2 N steps
every rank holds the full sum of one N-th of the tensor. The second phase goes through the steps in reverse order:
partners exchange the ranges that they hold. Each entry is summed on one rank and copied to the others, so all ranks
have the same bits. Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005.
"""

from collections.abc import Iterator

from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges

ENTRY_BYTES = 4


def all_reduce(rank: int, world: int, tensor: Tensor) -> PeerExchanges:
    steps = list(_steps(rank, world, tensor.numel()))
    for peer, own, other in steps:
        mine = tensor[own]
        received = yield PeerExchange({peer: tensor[other]}, {peer: mine.numel()}, tensor.dtype)
        mine += received[peer]
    for peer, own, other in reversed(steps):
        missing = tensor[other]
        received = yield PeerExchange({peer: tensor[own]}, {peer: missing.numel()}, tensor.dtype)
        missing.copy_(received[peer])
    return tensor


def refuses(world: int) -> str | None:
    return f"{world} is not a power of two" if world & (world - 1) else None


def rounds(world: int) -> int:
    return 2 * (world.bit_length() - 1)


def cost(rank: int, world: int, entries: int) -> tuple[int, int]:
    halves = (half for _, *both in _steps(rank, world, entries) for half in both)  # one half is sent in each phase
    lengths = [half.stop - half.start for half in halves]
    return sum(n > 0 for n in lengths), ENTRY_BYTES * sum(lengths)


def _steps(rank: int, world: int, entries: int) -> Iterator[tuple[int, slice, slice]]:
    """The steps of the first phase: (partner, half that this rank keeps, half that it sends)."""
    start, stop, q = 0, entries, 1
    while q < world:
        lower, upper = slice(start, (start + stop) // 2), slice((start + stop) // 2, stop)
        own, other = (upper, lower) if rank & q else (lower, upper)
        yield rank ^ q, own, other
        start, stop, q = own.start, own.stop, 2 * q
