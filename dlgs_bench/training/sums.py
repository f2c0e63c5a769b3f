"""Times sums of tensors of which whole blocks are zero: by OmniReduce, and by sums that send them all."""

import time
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from torch import Tensor

from dlgs_bench.comm import Communicator, collectives
from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.comm.collectives import sum_over_first
from dlgs_bench.comm.collectives.omnireduce import message_of, read, streams
from dlgs_bench.exchange.packing import blocks
from dlgs_bench.spec import RunSpec

ENGINES_OWN = ("engine", "all-gather")  # ways whose messages the engine makes
BY_DENSITY = ("ring", "omnireduce", "all-gather")  # ways timed at each density: all are held against the ring
DENSITIES = (1.0, 0.8, 0.4, 0.2, 0.1, 0.04, 0.02, 0.01)  # of the blocks of each rank
FEW = (1.0, 0.1, 0.01)  # those of a brief run


def sums(spec: RunSpec, comm: Communicator, data: None, device: torch.device, report: Callable) -> dict:
    """``sums``: by places of the non-zero blocks, density, way and repeat, the seconds of the slowest rank, and the
    most messages and bytes that a rank sent, where they are ours to count.

    The ways take turns; what sends the same at every density is timed where all blocks are full. RuntimeError if two
    disagree. The run's streams are OmniReduce's. Aggregators apart are ranks
    more, which wait while the others sum in another way.
    """
    shape, entries, workers = spec.scheme.streams, spec.measurement.largest_entries, spec.cluster.workers
    ways, cases = _ways(shape, workers, comm.world_size), list(_cases(workers, spec.measurement.brief))
    rows = []
    for done, (places, density) in enumerate(cases, start=1):
        mine = contribution(comm.rank, entries, shape["block"], places, density).to(device)
        for repeat in range(spec.measurement.repeats + 1):  # the first warms up
            totals = {}
            for way, add_up in ways.items():
                if density < 1 and way not in BY_DENSITY:
                    continue
                tensor = mine.clone()
                comm.barrier()
                before, begun = (comm.sent_messages, comm.sent_bytes), time.perf_counter()
                totals[way] = add_up(comm, tensor)
                spent_s = time.perf_counter() - begun
                sent = comm.sent_messages - before[0], comm.sent_bytes - before[1]
                most = comm.start_max(torch.tensor([spent_s, *sent], dtype=torch.float64)).wait().tolist()
                if repeat:
                    about = {"places": places, "density": density, "way": way, "repeat": repeat}
                    sent = [None, None] if way in ENGINES_OWN else most[1:]
                    rows.append(about | {"seconds": most[0], "messages": sent[0], "bytes": sent[1]})
            if comm.rank >= workers:
                continue
            if wrong := [way for way, total in totals.items() if not torch.equal(total, totals["ring"])]:
                raise RuntimeError(f"{wrong[0]} has another sum than the ring, density {density}, {places}")
        report(done, len(cases))
    return {"sums": rows}


def contribution(rank: int, entries: int, block: int, places: str, density: float) -> Tensor:
    """A rank's tensor: integers, of which the part ``density`` of the blocks is not zero. Their places: "random" on
    each rank, "overlapping" (the same everywhere) or "disjoint" (no two ranks share any)."""
    own = torch.Generator().manual_seed(rank + 1)
    whole = -(-entries // block)
    count = max(1, round(density * whole))
    shuffled = torch.randperm(whole, generator=own if places == "random" else torch.Generator().manual_seed(0))
    first = rank * count if places == "disjoint" else 0
    kept = torch.zeros(whole, dtype=torch.bool).index_fill_(0, shuffled[first : first + count], True)
    drawn = torch.randint(1, 99, (entries,), generator=own).float()
    return drawn.masked_fill_(~kept.repeat_interleave(block)[:entries], 0.0)


def _cases(workers: int, brief: bool) -> Iterator[tuple[str, float]]:
    """Places and densities, few if ``brief``; where every block is full, places say nothing."""
    if brief:
        yield from (("random", density) for density in FEW)
        return
    for density in DENSITIES:
        yield "random", density
        if density < 1:
            yield "overlapping", density
        if density * workers <= 1:
            yield "disjoint", density


def _ways(shape: dict, workers: int, world: int) -> dict[str, Callable[[Communicator, Tensor], Tensor]]:
    """Name -> what sums a tensor over all workers, maybe in place; what the engine does is over all ranks."""

    def by_collective(collective: ModuleType) -> Callable:
        return lambda comm, tensor: comm.start_rounds(sum_over_first(collective, comm.rank, workers, tensor)).wait()

    def by_streams(comm: Communicator, tensor: Tensor) -> Tensor:
        comm.start_streams(streams(comm.rank, world, tensor, **shape)).wait()
        return tensor

    ours = {name: by_collective(one) for name, one in collectives.plain(workers).items()} | {"omnireduce": by_streams}
    if workers < world:
        return ours
    engines = {
        "engine": lambda comm, tensor: comm.allreduce(tensor),
        "all-gather": lambda comm, tensor: by_gather(comm, tensor, shape["block"]),
    }
    return ours | engines


def by_gather(comm: Communicator, tensor: Tensor, block: int) -> Tensor:
    """The sum by an all-gather of the blocks that are not zero and their numbers."""
    rows, numbers = blocks(tensor, block), nonzero_blocks(tensor, block).nonzero().view(-1)
    message = message_of(numbers, rows[numbers])
    rows.zero_()
    for part in comm.allgather(message):
        rows.index_add_(0, *read(part, rows))
    return rows.view(-1)[: len(tensor)]
