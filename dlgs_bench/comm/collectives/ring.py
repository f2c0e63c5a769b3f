"""Ring all-reduce: the fewest bytes that an all-reduce can send, in 2 (N - 1) rounds of one message.

The tensor is split into N chunks whose sizes differ by at most one entry. Each chunk goes once around the ring and
collects its sum (reduce-scatter). It then goes around again and overwrites the chunks of the other ranks (all-gather).
So each chunk is summed on one rank and copied to the others, and all ranks have the same bits. Patarasuk and Yuan, J.
Parallel Distrib. Comput. 69, 2009.
"""

from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges

ENTRY_BYTES = 4


def all_reduce(rank: int, world: int, tensor: Tensor) -> PeerExchanges:
    left, right = (rank - 1) % world, (rank + 1) % world
    for step in range(rounds(world)):
        mine = tensor[_chunk(rank - step, world, tensor.numel())]
        into = tensor[_chunk(left - step, world, tensor.numel())]
        received = yield PeerExchange({right: mine}, {left: into.numel()}, tensor.dtype)
        if step < world - 1:
            into += received[left]
        else:
            into.copy_(received[left])
    return tensor


def refuses(world: int) -> str | None:
    return None


def rounds(world: int) -> int:
    return 2 * (world - 1)


def cost(rank: int, world: int, entries: int) -> tuple[int, int]:
    chunks = (_chunk(rank - step, world, entries) for step in range(rounds(world)))
    lengths = [chunk.stop - chunk.start for chunk in chunks]
    return sum(n > 0 for n in lengths), ENTRY_BYTES * sum(lengths)


def _chunk(number: int, world: int, entries: int) -> slice:
    """The range of chunk ``number`` modulo ``world``."""
    number %= world
    return slice(number * entries // world, (number + 1) * entries // world)
