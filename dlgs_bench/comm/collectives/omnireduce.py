"""OmniReduce: a sum over all ranks that sends only blocks that are not zero (Fei et al., SIGCOMM 2021).

The tensor is split into numbered blocks. A *stream* sums its own share of the blocks through one aggregator. The
aggregator shares a rank with a worker, or has a dedicated rank that adds nothing. The blocks of a stream form a matrix
of ``fused`` columns. The stream repeats two rounds:

1. In each column, the aggregator has requested one block. Every worker whose block is not zero sends it, together with
   the number of its next block in that column that is not zero.
2. The aggregator adds the blocks in rank order. It sends to all workers the sums, and the number of the block that it
   requests next in each column: the smallest of the workers' next numbers.

The first block of each column is sent even if it is zero, because the aggregator needs the workers' next numbers. A
small tensor has few streams, so that these first blocks are a small part of it. A stream ends when no worker has a next
block in any column.

Each stream is a coroutine of rounds, so several streams can be in flight (``Communicator.start_streams``). All ranks
have the numbers of the requested blocks, so a message has no count, and only one number per block.
"""

import torch
from torch import Tensor

from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.comm.collectives import PeerExchange, PeerExchanges

WORD_BYTES = 4  # messages have dtype int32
MESSAGES_EACH = 16  # the smallest share of a stream, in full messages; the first of them is sent even if it is zero
NONE = 2**31 - 1  # stands for "no next block"; larger than the number of every block


def streams(
    rank: int,
    world: int,
    tensor: Tensor,
    *,
    block: int = 256,
    fused: int = 16,
    in_flight: int = 4,
    aggregators: int | None = None,
    dedicated: bool = False,
) -> list[PeerExchanges | None]:
    """The streams that sum ``tensor``, shape (n,), over all workers in place. Each returns the entries that it sent.

    ``block``: entries in a block.
    ``fused``: columns of a stream's matrix, which is the largest number of blocks in a message.
    ``in_flight``: streams per aggregator. A small tensor has fewer streams (``stream_count``).
    ``aggregators``: the number of aggregators, which are on ranks 0, 1, ...; by default, on all ranks.
    ``dedicated``: whether aggregators have dedicated ranks, the last ones. Then the other ranks are the workers. A
    dedicated aggregator passes a tensor for its shape and dtype only, and gets None for the streams of other
    aggregators.

    ValueError in one line if the options are invalid.
    """
    if dedicated and aggregators is None:
        raise ValueError("omnireduce: aggregators: missing, but dedicated is set; give the number of aggregators")
    aggregators = world if aggregators is None else aggregators
    for name, value in (("block", block), ("fused", fused), ("in_flight", in_flight), ("aggregators", aggregators)):
        if value < 1:
            raise ValueError(f"omnireduce: {name}: {value} is not a positive integer; use at least 1")
    _check(world, tensor, block, aggregators, dedicated)
    workers = world - aggregators if dedicated else world
    blocks = _Blocks(tensor, block)
    count = stream_count(len(blocks), fused, in_flight, aggregators)
    present = nonzero_blocks(tensor, block) if rank < workers else torch.zeros(len(blocks), dtype=torch.bool)
    result: list[PeerExchanges | None] = []
    for number in range(count):
        numbers = torch.arange(number, len(blocks), count)
        aggregator = number % aggregators + (workers if dedicated else 0)
        joins = rank < workers or rank == aggregator
        result.append(_stream(rank, workers, blocks, numbers, present[numbers], fused, aggregator) if joins else None)
    return result


def refuses(world: int) -> str | None:
    return None


def stream_count(blocks: int, fused: int, in_flight: int, aggregators: int) -> int:
    """The number of streams of all aggregators together, for a tensor of ``blocks`` blocks.

    Each aggregator has ``in_flight`` streams. If the share of a stream would be less than ``MESSAGES_EACH`` full
    messages, there are fewer, but at least one in all. Then some aggregators may have none.
    """
    return min(aggregators * in_flight, max(1, blocks // (MESSAGES_EACH * fused)), blocks)


def _check(world: int, tensor: Tensor, block: int, aggregators: int, dedicated: bool) -> None:
    """ValueError in one line for too many aggregators, or blocks that do not fit messages."""
    most = world - 1 if dedicated else world
    if aggregators > most:
        kind = "dedicated aggregators" if dedicated else "aggregators"
        raise ValueError(f"omnireduce: aggregators: {aggregators} {kind} but only {world} ranks; use at most {most}")
    if tensor.element_size() > WORD_BYTES or block * tensor.element_size() % WORD_BYTES:
        size = f"{block} entries of {tensor.dtype}"
        raise ValueError(f"omnireduce: block: {size} do not fit messages of 32-bit words; use float32")


def _stream(
    rank: int, workers: int, blocks: "_Blocks", numbers: Tensor, present: Tensor, fused: int, aggregator: int
) -> PeerExchanges:
    """One stream, as a coroutine. ``numbers``: of its blocks, sorted; ``present``: which of them are not zero here."""
    fused = min(fused, len(numbers))
    others = [peer for peer in range(workers) if peer != rank]
    width = message_length(1, blocks.like)
    queue = _queue(numbers, present, fused) if rank < workers else torch.full((1, fused), NONE)
    columns = torch.arange(fused)
    next_row = torch.zeros(fused, dtype=torch.int64)  # per column, the number of blocks that this rank has sent
    requested = numbers[:fused].clone()  # per column, the block that is summed now
    next_of_worker = requested.repeat(workers, 1)  # on the aggregator: per worker and column, its next block
    while (live := requested != NONE).any():
        due = live & (queue[next_row, columns] == requested)
        next_row += due
        message = message_of(queue[next_row, columns][due], blocks.take(requested[due]))
        if rank == aggregator:
            sends_now = live & (next_of_worker == requested)
            lengths = {peer: int(sends_now[peer].sum()) * width for peer in others}
            received = yield PeerExchange({}, {peer: n for peer, n in lengths.items() if n}, torch.int32)
            slot = blocks.like.new_zeros(fused, blocks.size)
            for peer in range(workers):  # in rank order
                if sends_now[peer].any():
                    pushed = message if peer == rank else received[peer]
                    next_of_worker[peer, sends_now[peer]], data = read(pushed, blocks.like)
                    slot[sends_now[peer]] += data
            answer = message_of(next_of_worker.amin(0)[live], slot[live])
            yield PeerExchange(dict.fromkeys(others, answer), {}, torch.int32)
        else:
            yield PeerExchange({aggregator: message} if due.any() else {}, {}, torch.int32)
            received = yield PeerExchange({}, {aggregator: int(live.sum()) * width}, torch.int32)
            answer = received[aggregator]
        following, data = read(answer, blocks.like)
        if rank < workers:
            blocks.put(requested[live], data)
        requested[live] = following
    return blocks.entries(queue[queue != NONE])


def _queue(numbers: Tensor, present: Tensor, fused: int) -> Tensor:
    """Per column, the sorted numbers of the blocks that this rank sends, then NONE; shape (rows + 1, fused)."""
    is_sent = present.clone()
    is_sent[:fused] = True
    queue = torch.full((-(-len(numbers) // fused) + 1, fused), NONE)
    queue.view(-1)[: len(numbers)] = torch.where(is_sent, numbers, NONE)
    return queue.sort(dim=0).values


def message_of(numbers: Tensor, data: Tensor) -> Tensor:
    """A message, int32, of k block numbers, shape (k,), and then k blocks, shape (k, size)."""
    return torch.cat([numbers.to(torch.int32), data.view(torch.int32).view(-1)])


def read(message: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers, int64, and the blocks, shape (k, size), of a message; ``like``: gives the size and the dtype."""
    count = message.numel() // message_length(1, like)
    return message[:count].to(torch.int64), message[count:].view(like.dtype).view(count, like.shape[1])


def message_length(count: int, like: Tensor) -> int:
    """The int32 elements in a message of ``count`` blocks that have the size and the dtype of ``like``."""
    return count * (1 + like.shape[1] * like.element_size() // WORD_BYTES)


class _Blocks:
    """A tensor, shape (n,), as blocks of ``size`` entries. The last block is padded with zeros."""

    def __init__(self, tensor: Tensor, size: int) -> None:
        whole = len(tensor) // size
        self.size, self._whole, self._rest = size, tensor[: whole * size].view(-1, size), tensor[whole * size :]
        self.like = tensor.new_empty(0, size)  # gives the size and the dtype of blocks

    def __len__(self) -> int:
        return len(self._whole) + (len(self._rest) > 0)

    def entries(self, numbers: Tensor) -> int:
        """The number of entries of the tensor in these blocks."""
        short = int((numbers >= len(self._whole)).sum())
        return len(numbers) * self.size - short * (self.size - len(self._rest))

    def take(self, numbers: Tensor) -> Tensor:
        """Copies of these blocks, shape (k, size)."""
        copies, whole = self._whole.new_zeros(len(numbers), self.size), numbers < len(self._whole)
        copies[whole] = self._whole[numbers[whole]]
        copies[~whole, : len(self._rest)] = self._rest
        return copies

    def put(self, numbers: Tensor, data: Tensor) -> None:
        """Write data, shape (k, size), to these blocks."""
        whole = numbers < len(self._whole)
        self._whole[numbers[whole]] = data[whole]
        for last in data[~whole]:
            self._rest.copy_(last[: len(self._rest)])
