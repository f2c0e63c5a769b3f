"""What the ranks of test_comm do with a communicator, and what they return."""

import random
import time
from unittest import mock

import torch
import torch.distributed as dist
from hybrid_parts import trained

from dlgs_bench.comm import Communicator, collectives
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.comm.collectives.omnireduce import streams
from dlgs_bench.comm.torch_dist_engine import TorchDist
from dlgs_bench.engines import FIRST_BYTES
from dlgs_bench.hooks.groups import own_communicator

GATHERED = (
    torch.uint8, torch.int8, torch.bool, torch.int16, torch.float16, torch.bfloat16,
    torch.int32, torch.float32, torch.int64, torch.float64,
)  # fmt: skip
REDUCED = (torch.float32, torch.float64, torch.int32, torch.int64)
ENTRIES = (0, 1, 2, 5, 1000, 100_003)  # that a collective sums
LONG = (2**16 - 9, 2**16 - 8, 2**16 - 7, 300_001)  # of messages, in bytes, about where an engine may cut one
FIRSTS = (0, 1, FIRST_BYTES, FIRST_BYTES + 1)
BUCKETS = 5
BLOCKS = 500  # of OmniReduce's tensor
OMNIREDUCE = (  # its shapes: one block per message to one aggregator; fused, and several streams for each of two ranks
    {"block": 64, "fused": 1, "in_flight": 1, "aggregators": 1},
    {"block": 64, "fused": 3, "in_flight": 5, "aggregators": 2},
)
APART = ({"aggregators": 1, "dedicated": True}, {"aggregators": 2, "dedicated": True})  # each with the last shape above


def numbers(entries: int, dtype: torch.dtype, *key: int) -> torch.Tensor:
    """Random numbers of both signs. Every process draws the same ones for the same key."""
    seed = sum(k * 1009**i for i, k in enumerate((entries, *key)))
    drawn = 50 * torch.randn(entries, generator=torch.Generator().manual_seed(seed))
    if dtype == torch.bool:
        return drawn > 0
    return drawn.to(dtype) if dtype.is_floating_point else drawn.to(torch.int64).to(dtype)


def length(sender: int, receiver: int = 0, bucket: int = 0) -> int:
    """The length of a message, in entries. Some are empty, and most are odd."""
    return 3 * ((sender + 2 * receiver + bucket) % 4)


def long(rank: int, turn: int) -> torch.Tensor:
    return numbers(LONG[(rank + turn) % len(LONG)], torch.uint8, rank, turn)


def message(sender: int, receiver: int, dtype: torch.dtype, bucket: int = 0) -> torch.Tensor:
    return numbers(length(sender, receiver, bucket), dtype, sender, receiver, bucket)


def to_all(comm: Communicator, dtype: torch.dtype, headers: bool, bucket: int = 0) -> PeerExchange:
    """A message to each other rank."""
    peers = [peer for peer in range(comm.world_size) if peer != comm.rank]
    sends = {peer: message(comm.rank, peer, dtype, bucket).to(comm.device) for peer in peers}
    receives = {peer: None if headers else length(peer, comm.rank, bucket) for peer in peers}
    return PeerExchange(sends, receives, dtype, headers)


def relay(comm: Communicator, bucket: int):
    """A number goes around and each rank adds its own. Every rank pauses for a random time."""
    held = torch.tensor([bucket * 10 + comm.rank], dtype=torch.int16, device=comm.device)
    left, right = (comm.rank - 1) % comm.world_size, (comm.rank + 1) % comm.world_size
    for _ in range(5):
        time.sleep(random.random() * 0.003)
        got = yield PeerExchange({right: held}, {left: 1}, torch.int16)
        held = got[left] + comm.rank
    return held


def seen(comm: Communicator, engine: str) -> dict:
    """All results of this rank, by the name of the operation."""
    found = answered(comm) | summed(comm) | streamed(comm) | in_flight(comm)
    found |= {"ends": ends(comm), "hybrid": trained(comm, comm.world_size // 2)}
    if engine == "torch_dist":
        found["among some"] = among_some(comm.rank, comm.world_size)
        of_a_hook = own_communicator(dist.group.WORLD, comm.device)
        found["messages"] = [messages(comm), messages(of_a_hook)]
        of_a_hook.release()
    if engine == "horovod":  # torch.distributed does not notice
        found["another length"] = another_length(comm)
    return found


def answered(comm: Communicator) -> dict:
    """The results of gathers, maxima and rounds, one after the other."""
    found = {}
    for dtype in GATHERED:
        mine, equal = (numbers(n, dtype, comm.rank).to(comm.device) for n in (length(comm.rank), 5))
        found[f"gather {dtype}"] = comm.allgather(mine)
        found[f"gather equal {dtype}"] = comm.start_allgather(equal, equal=True).wait()
    for turn in range(len(LONG)):
        found[f"gather long {turn}"] = comm.allgather(long(comm.rank, turn).to(comm.device))
    for dtype in REDUCED:
        mine = numbers(9, dtype, comm.rank).to(comm.device)
        assert comm.start_max(mine).wait() is mine
        found[f"max {dtype}"] = mine
    for dtype in GATHERED:
        for headers in (False, True):
            before = comm.sent_messages, comm.sent_bytes
            answer = comm.start_round(to_all(comm, dtype, headers)).wait()
            sent = comm.sent_messages - before[0], comm.sent_bytes - before[1]
            found[f"round {dtype} {headers}"] = (answer, sent)
    return found


def ends(comm: Communicator) -> list[tuple[float, float, float]]:
    """Three times for each kind of call: when it was made, when the engine reports its end, when the caller looked."""
    for pause_s in (0.1, 1, 5, 30):  # on a busy machine a call may take longer than the shortest
        found = []
        with comm.record_completion_times():
            for start in (
                lambda: comm.start_allreduce(torch.ones(100_000)),
                lambda: comm.start_allgather(torch.ones(100_000)),
                lambda: comm.start_round(to_all(comm, torch.float32, True)),
            ):
                made, pending = time.perf_counter(), start()
                time.sleep(pause_s)
                looked = time.perf_counter()
                pending.wait()
                found.append((made, pending.ended_at, looked))
        late = any(ended >= looked for _, ended, looked in found)
        if not comm.start_max(torch.tensor([float(late)])).wait().item():  # on no rank
            break
    return found


def summed(comm: Communicator) -> dict:
    """The sum, the messages and bytes sent for it, and the engine's own sum, by collective and number of entries."""
    found = {}
    for name, collective in collectives.plain(comm.world_size).items():
        for entries in ENTRIES:
            mine = numbers(entries, torch.float32, comm.rank).to(comm.device)
            engine = comm.allreduce(mine.clone()) if entries else mine.clone()
            before = comm.sent_messages, comm.sent_bytes
            assert comm.start_rounds(collective.all_reduce(comm.rank, comm.world_size, mine)).wait() is mine
            sent = comm.sent_messages - before[0], comm.sent_bytes - before[1]
            found[f"sum {name} {entries}"] = (mine, sent, engine)
    return found


def sparse_blocks(rank: int, block: int) -> torch.Tensor:
    """Integers in blocks. A fifth of the blocks is not zero, and the last block is short."""
    entries = BLOCKS * block - block // 2
    kept = (numbers(BLOCKS, torch.float32, rank).abs() < 12).repeat_interleave(block)[:entries]
    return numbers(entries, torch.float32, rank).round().masked_fill_(~kept, 0.0)


def shapes(world: int, requires_all_ranks: bool) -> list[dict]:
    """The shapes of OmniReduce among ``world`` ranks. ``requires_all_ranks``: whether a round needs all of them."""
    fit = [one for one in APART if one["aggregators"] < world and (one["aggregators"] == 1 or not requires_all_ranks)]
    return [*OMNIREDUCE, *(OMNIREDUCE[-1] | one for one in fit)]


def streamed(comm: Communicator) -> dict:
    """The sum, and the messages and bytes sent for it, by shape of OmniReduce. A dedicated aggregator keeps its
    tensor."""
    found = {}
    for which, shape in enumerate(shapes(comm.world_size, comm.requires_all_ranks)):
        mine, before = sparse_blocks(comm.rank, shape["block"]), (comm.sent_messages, comm.sent_bytes)
        comm.start_streams(streams(comm.rank, comm.world_size, mine, **shape)).wait()
        found[f"omnireduce {which}"] = mine, (comm.sent_messages - before[0], comm.sent_bytes - before[1])
    return found


def in_flight(comm: Communicator) -> dict:
    """All kinds of calls at once. Every rank calls in the same order, at its own pace, and waits in its own order."""
    pending = {}
    for bucket in range(BUCKETS):
        addend = numbers(101, torch.float32, comm.rank, bucket).round().to(comm.device)
        for name, collective in collectives.plain(comm.world_size).items():
            mine = addend.clone()
            rounds = collective.all_reduce(comm.rank, comm.world_size, mine)
            pending[f"{name} {bucket}"] = comm.start_rounds(rounds)
        pending[f"engine {bucket}"] = comm.start_allreduce(addend)
        pending[f"relay {bucket}"] = comm.start_rounds(relay(comm, bucket))
        gathered = numbers(length(comm.rank, 0, bucket), torch.uint8, comm.rank, 0, bucket)
        pending[f"gather {bucket}"] = comm.start_allgather(gathered.to(comm.device))
        time.sleep(random.random() * 0.005)
        pending[f"round {bucket}"] = comm.start_round(to_all(comm, torch.bfloat16, True, bucket))
        pending[f"max {bucket}"] = comm.start_max(numbers(11, torch.float32, comm.rank, bucket).to(comm.device))
    order = list(pending)
    random.Random(comm.rank).shuffle(order)
    return {f"in flight: {what}": pending[what].wait() for what in order}


def among_some(rank: int, world: int) -> dict:
    """What all ranks except the first see in a group of their own, where each is known by its index in the group."""
    group = dist.new_group(range(1, world))
    if rank == 0:
        return {}
    comm = TorchDist(torch.device("cpu"), group)
    told = numbers(5, torch.float32, comm.rank)
    comm.broadcast(told, root=comm.world_size - 1)
    return {
        "gather": comm.allgather(numbers(length(comm.rank), torch.float32, comm.rank)),
        "round": comm.start_round(to_all(comm, torch.float32, headers=True)).wait(),
        "max": comm.start_max(torch.tensor([float(rank)])).wait(),
        "broadcast": told,
    }


def messages(comm: TorchDist) -> list[int]:
    """The messages to each other rank in a gather of as many bytes as in ``FIRSTS``."""
    counts: list[int] = []
    post = comm._post

    def counted(sends: dict, receive_buffers: dict):
        counts[-1] += sum(map(bool, map(len, sends.values()))) // len(sends)
        return post(sends, receive_buffers)

    with mock.patch.object(comm, "_post", counted):
        for entries in FIRSTS:
            counts.append(0)
            comm.allgather(numbers(entries, torch.uint8, comm.rank))
    return counts


def another_length(comm: Communicator) -> str:
    """The error if the neighbour sends two entries where three are expected."""
    try:
        comm.start_round(PeerExchange({(comm.rank + 1) % comm.world_size: torch.zeros(2)},
                               {(comm.rank - 1) % comm.world_size: 3})).wait()  # fmt: skip
    except ValueError as error:
        return str(error)
    return ""
