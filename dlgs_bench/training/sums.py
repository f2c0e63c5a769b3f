"""Times sums of tensors with blocks of zeros: by OmniReduce, which skips them, and by sums that send all blocks."""

import time
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
from torch import Tensor

from dlgs_bench.comm import Communicator, collectives
from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.comm.collectives import sum_over_first
from dlgs_bench.comm.collectives.omnireduce import message_of, read, stream_count, streams
from dlgs_bench.exchange.packing import blocks
from dlgs_bench.spec import RunSpec

ENGINES_OWN = ("engine", "all-gather")  # ways whose messages are sent inside the engine, so they cannot be counted
BY_DENSITY = ("ring", "omnireduce", "all-gather")  # ways that are timed at each density; all are compared with the ring
DENSITIES = (1.0, 0.8, 0.4, 0.2, 0.1, 0.04, 0.02, 0.01)  # share of a rank's blocks that are not zero
FEW = (1.0, 0.1, 0.01)  # densities of a brief run


def sums(spec: RunSpec, comm: Communicator, data: None, device: torch.device, report: Callable) -> dict:
    """The table ``sums``: the seconds of the slowest rank, and the most messages and bytes that a rank sent.

    One row per placement of the non-zero blocks (``positions``), density, way of summing and repeat. Messages and bytes
    are empty for ``ENGINES_OWN``. ``streams`` is the number of streams, and empty for all but OmniReduce. The ways are
    timed in turns. A way that sends the same at every density is timed only with full blocks. RuntimeError if two ways
    disagree. The run's streams are options of OmniReduce. Dedicated aggregators are additional ranks, which wait while
    the other ways sum.
    """
    shape, entries, workers = spec.scheme.streams, spec.measurement.largest_entries, spec.cluster.workers
    ways, cases = _ways(shape, workers, comm.world_size), list(_cases(workers, spec.measurement.brief))
    count = stream_count(-(-entries // shape["block"]), shape["fused"], shape["in_flight"], shape["aggregators"])
    rows = []
    for done, (positions, density) in enumerate(cases, start=1):
        mine = contribution(comm.rank, entries, shape["block"], positions, density).to(device)
        for repeat in range(spec.measurement.repeats + 1):  # the first repeat warms up
            totals = {}
            for way, add_up in ways.items():
                if density < 1 and way not in BY_DENSITY:
                    continue
                tensor = mine.clone()
                comm.barrier()
                before, began = (comm.sent_messages, comm.sent_bytes), time.perf_counter()
                totals[way] = add_up(comm, tensor)
                spent_s = time.perf_counter() - began
                sent = comm.sent_messages - before[0], comm.sent_bytes - before[1]
                most = comm.start_max(torch.tensor([spent_s, *sent], dtype=torch.float64)).wait().tolist()
                if repeat:
                    metadata = {"positions": positions, "density": density, "way": way, "repeat": repeat}
                    messages, sent_bytes = (None, None) if way in ENGINES_OWN else most[1:]
                    metadata |= {"streams": count if way == "omnireduce" else None}
                    rows.append(metadata | {"seconds": most[0], "messages": messages, "bytes": sent_bytes})
            if comm.rank >= workers:
                continue
            if wrong := [way for way, total in totals.items() if not torch.equal(total, totals["ring"])]:
                raise RuntimeError(f"{wrong[0]}: the sum differs from the ring's at density {density}, {positions}")
        report(done, len(cases))
    return {"sums": rows}


def contribution(rank: int, entries: int, block: int, positions: str, density: float) -> Tensor:
    """A rank's tensor of integers, shape (entries,), in which a share ``density`` of the blocks is not zero.

    ``positions`` of these blocks: "random" on each rank, "overlapping" (the same on all ranks) or "disjoint" (on one
    rank only).
    """
    own = torch.Generator().manual_seed(rank + 1)
    num_blocks = -(-entries // block)
    count = max(1, round(density * num_blocks))
    shuffled = torch.randperm(num_blocks, generator=own if positions == "random" else torch.Generator().manual_seed(0))
    first = rank * count if positions == "disjoint" else 0
    nonzero = torch.zeros(num_blocks, dtype=torch.bool).index_fill_(0, shuffled[first : first + count], True)
    values = torch.randint(1, 99, (entries,), generator=own).float()
    return values.masked_fill_(~nonzero.repeat_interleave(block)[:entries], 0.0)


def _cases(workers: int, brief: bool) -> Iterator[tuple[str, float]]:
    """The placements and densities of the non-zero blocks, few if ``brief``. Full blocks have a single placement."""
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
    """Name -> function that sums a tensor over all workers, perhaps in place. The engine's sums are over all ranks."""

    def by_collective(collective: ModuleType) -> Callable:
        return lambda comm, tensor: comm.start_rounds(sum_over_first(collective, comm.rank, workers, tensor)).wait()

    def by_streams(comm: Communicator, tensor: Tensor) -> Tensor:
        comm.start_streams(streams(comm.rank, world, tensor, **shape)).wait()
        return tensor

    ways = {name: by_collective(module) for name, module in collectives.plain(workers).items()}
    ways["omnireduce"] = by_streams
    if workers == world:  # without dedicated aggregators
        ways["engine"] = lambda comm, tensor: comm.allreduce(tensor)
        ways["all-gather"] = lambda comm, tensor: by_gather(comm, tensor, shape["block"])
    return ways


def by_gather(comm: Communicator, tensor: Tensor, block: int) -> Tensor:
    """The sum by an all-gather of the blocks that are not zero and their indices."""
    rows, indices = blocks(tensor, block), nonzero_blocks(tensor, block).nonzero().view(-1)
    message = message_of(indices, rows[indices])
    rows.zero_()
    for part in comm.allgather(message):
        rows.index_add_(0, *read(part, rows))
    return rows.view(-1)[: len(tensor)]
