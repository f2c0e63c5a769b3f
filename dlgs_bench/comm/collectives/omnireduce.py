"""OmniReduce: a sum over all ranks for which only blocks that are not zero travel (Fei et al., SIGCOMM 2021).

The tensor is cut into blocks. A *stream* has its own share of them and one aggregator, which sits beside a worker, on
the same rank, or apart on a rank that has nothing to add. A stream's blocks form a matrix; its aggregator asks in each
column for the smallest block that any worker has. Those who have it send it and say which is their next; the aggregator
adds up what came, in rank order, and gives all workers the sums and the blocks that it asks for next. The first block
of each column is sent even if it is zero, so that everybody's next is known; so that this first burst stays small
beside the tensor, a small tensor has few streams. A stream ends when no column has a next block on any rank.

Each stream is a coroutine of rounds by itself, in turns a round to the aggregator and one from it, so that several can
be under way at a time (``Communicator.start_streams``). Rounds are ordered and everybody knows what was asked for, so
a message needs no count, and of each block one number: its sender's next in that column.
"""

import torch
from torch import Tensor

from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges

WORD_BYTES = 4  # messages are of int32
MESSAGES_EACH = 16  # a stream's share of the blocks, in full messages, is at least this: the first of them is the burst
NONE = 2**31 - 1  # the number of a block that does not exist, larger than all that do


def streams(
    rank: int,
    world: int,
    tensor: Tensor,
    *,
    block: int = 256,
    fused: int = 16,
    in_flight: int = 4,
    aggregators: int | None = None,
    apart: bool = False,
) -> list[PeerExchanges | None]:
    """The streams that sum ``tensor``, shape (n,), over all workers in place; each returns how many entries it sent.

    ``block``: entries in a block. ``fused``: columns of a stream's matrix, the most blocks in a message.
    ``in_flight``: streams of each aggregator, fewer (but one in all) where a stream's share would be less than
    ``MESSAGES_EACH`` full messages. ``aggregators``: ranks 0, 1, ... that have one; all ranks, unless said. ``apart``:
    the last ranks have them, and the others are the workers; of what an aggregator calls its tensor only the shape and
    the type are looked at, and it has no part in streams of others. ValueError in one line for what cannot be.
    """
    if apart and aggregators is None:
        raise ValueError("omnireduce: aggregators are to be apart, but not said how many; give aggregators")
    aggregators = world if aggregators is None else aggregators
    workers = world - aggregators if apart else world
    for name, value in (("block", block), ("fused", fused), ("in_flight", in_flight), ("aggregators", aggregators)):
        if value < 1:
            raise ValueError(f"omnireduce: {name} is {value}; give at least 1")
    if aggregators > world - apart:
        among = " apart from a worker" if apart else ""
        raise ValueError(f"omnireduce: {aggregators} aggregators{among} on {world} ranks; give at most {world - apart}")
    if tensor.element_size() > WORD_BYTES or block * tensor.element_size() % WORD_BYTES:
        raise ValueError(f"omnireduce: blocks of {block} entries of {tensor.dtype} do not fit messages of 32-bit words")
    blocks = _Blocks(tensor, block)
    count = min(aggregators * in_flight, max(1, len(blocks) // (MESSAGES_EACH * fused)), len(blocks))
    present = nonzero_blocks(tensor, block) if rank < workers else torch.zeros(len(blocks), dtype=torch.bool)
    found: list[PeerExchanges | None] = []
    for number in range(count):
        share, aggregator = torch.arange(number, len(blocks), count), number % aggregators + (workers if apart else 0)
        joins = rank < workers or rank == aggregator
        found.append(_stream(rank, workers, blocks, share, present[share], fused, aggregator) if joins else None)
    return found


def refuses(world: int) -> str | None:
    return None


def _stream(
    rank: int, workers: int, blocks: "_Blocks", share: Tensor, present: Tensor, fused: int, aggregator: int
) -> PeerExchanges:
    """One stream. ``share``: the numbers of its blocks, rising; ``present``: which of them are not zero here."""
    fused = min(fused, len(share))
    others, width = [peer for peer in range(workers) if peer != rank], message_length(1, blocks.like)
    mine = _queue(share, present, fused) if rank < workers else torch.full((1, fused), NONE)
    columns, sent = torch.arange(fused), torch.zeros(fused, dtype=torch.int64)  # sent: by column, how many of mine
    asked = share[:fused].clone()  # by column: the block that is summed now
    nexts = asked.repeat(workers, 1)  # on the aggregator: each worker's next, by column
    while (live := asked != NONE).any():
        due = live & (mine[sent, columns] == asked)
        sent += due
        message = message_of(mine[sent, columns][due], blocks.take(asked[due]))
        if rank == aggregator:
            dues = live & (nexts == asked)
            lengths = {peer: int(dues[peer].sum()) * width for peer in others}
            received = yield PeerExchange({}, {peer: n for peer, n in lengths.items() if n}, torch.int32)
            slot = blocks.like.new_zeros(fused, blocks.size)
            for peer in range(workers):  # in rank order
                if dues[peer].any():
                    nexts[peer, dues[peer]], data = read(message if peer == rank else received[peer], blocks.like)
                    slot[dues[peer]] += data
            answer = message_of(nexts.amin(0)[live], slot[live])
            yield PeerExchange(dict.fromkeys(others, answer), {}, torch.int32)
        else:
            yield PeerExchange({aggregator: message} if due.any() else {}, {}, torch.int32)
            received = yield PeerExchange({}, {aggregator: int(live.sum()) * width}, torch.int32)
            answer = received[aggregator]
        following, data = read(answer, blocks.like)
        if rank < workers:
            blocks.put(asked[live], data)
        asked[live] = following
    return blocks.entries(mine[mine != NONE])


def _queue(share: Tensor, present: Tensor, fused: int) -> Tensor:
    """By column the numbers of the blocks that this rank sends, rising, then NONE; shape (rows + 1, fused)."""
    goes = present.clone()
    goes[:fused] = True
    queue = torch.full((-(-len(share) // fused) + 1, fused), NONE)
    queue.view(-1)[: len(share)] = torch.where(goes, share, NONE)
    return queue.sort(dim=0).values


def message_of(numbers: Tensor, data: Tensor) -> Tensor:
    """Numbers (k,) and blocks (k, size) as int32, the numbers first."""
    return torch.cat([numbers.to(torch.int32), data.view(torch.int32).view(-1)])


def read(message: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers, int64, and the blocks, shape (k, size), in a message of ``message_of``; ``like``: such blocks."""
    count = message.numel() // message_length(1, like)
    return message[:count].to(torch.int64), message[count:].view(like.dtype).view(count, like.shape[1])


def message_length(count: int, like: Tensor) -> int:
    """The words of a message of ``count`` blocks like these."""
    return count * (1 + like.shape[1] * like.element_size() // WORD_BYTES)


class _Blocks:
    """A tensor, shape (n,), as blocks of ``size`` entries; what the last one lacks is 0."""

    def __init__(self, tensor: Tensor, size: int):
        whole = len(tensor) // size
        self.size, self._whole, self._rest = size, tensor[: whole * size].view(-1, size), tensor[whole * size :]
        self.like = tensor.new_empty(0, size)  # for the shape and the type of blocks

    def __len__(self) -> int:
        return len(self._whole) + (len(self._rest) > 0)

    def entries(self, numbers: Tensor) -> int:
        """How many entries of the tensor these blocks hold."""
        short = int((numbers >= len(self._whole)).sum())
        return len(numbers) * self.size - short * (self.size - len(self._rest))

    def take(self, numbers: Tensor) -> Tensor:
        """Copies of these blocks, shape (k, size)."""
        found, whole = self._whole.new_zeros(len(numbers), self.size), numbers < len(self._whole)
        found[whole] = self._whole[numbers[whole]]
        found[~whole, : len(self._rest)] = self._rest
        return found

    def put(self, numbers: Tensor, data: Tensor) -> None:
        """Write data, shape (k, size), to these blocks."""
        whole = numbers < len(self._whole)
        self._whole[numbers[whole]] = data[whole]
        for last in data[~whole]:
            self._rest.copy_(last[: len(self._rest)])
