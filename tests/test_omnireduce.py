"""OmniReduce: what it sums, and every message and byte it sends, all ranks in lock step, against sets in Python."""

from functools import partial
from itertools import chain

import lockstep
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support import METHODS, examples, exchange_of, exchange_steps, gradients, make, one_step, watched

from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.comm.collectives.omnireduce import streams
from dlgs_bench.comm.local import run_workers
from dlgs_bench.timemodel.links import streamed_bound
from dlgs_bench.topology import Traffic

pytestmark = pytest.mark.unit

WIRE_BYTES = 4  # of a number, and of an entry


def numbers_of(tensor: torch.Tensor, block: int) -> set[int]:
    """The blocks that are not zero."""
    return {number for number, part in enumerate(tensor.split(block)) if part.any()}


def columns_of(blocks: int, fused: int, in_flight: int, aggregators: int) -> list[tuple[int, list[list[int]]]]:
    """The aggregator of each stream and the blocks in each of its columns. A stream has 16 full messages or more."""
    count = max(1, min(aggregators * in_flight, blocks // (16 * fused))) if blocks else 0
    shares = [list(range(first, blocks, count)) for first in range(count)]
    width = [min(fused, len(share)) for share in shares]
    return [
        (number % aggregators, [share[column :: width[number]] for column in range(width[number])])
        for number, share in enumerate(shares)
    ]


def by_formula(
    found: list[set[int]], entries: int, *, block: int, aggregators: int, dedicated: bool = False, **shape
) -> list[tuple[int, int]]:
    """The messages and bytes that each rank sends. ``found``: each worker's blocks that are not zero.

    One block per message: |F u NZ_i| to the aggregator, |F u U| from it to each worker. Fused: a worker sends in the
    rounds in which a column's turn is its own, the aggregator as often as its longest column. Nobody sends to oneself.
    """
    workers = len(found)
    messages, blocks_sent = ([0] * (workers + dedicated * aggregators) for _ in range(2))
    for number, columns in columns_of(-(-entries // block), aggregators=aggregators, **shape):
        aggregator = number + dedicated * workers
        turns = [sorted({c[0]} | (set(c) & set().union(*found))) for c in columns]
        others = set(range(workers)) - {aggregator}
        for rank in others:
            own = [{c[0]} | (set(c) & found[rank]) for c in columns]
            messages[rank] += len({turn.index(n) for turn, sent in zip(turns, own, strict=True) for n in sent})
            blocks_sent[rank] += sum(map(len, own))
        messages[aggregator] += len(others) * max(map(len, turns))
        blocks_sent[aggregator] += len(others) * sum(map(len, turns))
    return [(m, WIRE_BYTES * (1 + block) * b) for m, b in zip(messages, blocks_sent, strict=True)]


def summed(tensors: list[torch.Tensor], **shape) -> list[tuple[int, int]]:
    """Sum the tensors in place, one stream after the other; return the messages and bytes by rank."""
    everyones = [streams(rank, len(tensors), tensor, **shape) for rank, tensor in enumerate(tensors)]
    outcomes = [lockstep.run(stream) for stream in zip(*everyones, strict=True)]
    return [(sum(o.messages[r] for o in outcomes), sum(o.bytes[r] for o in outcomes)) for r in range(len(tensors))]


def blockwise(world: int, entries: int, block: int, pattern: str, seed: int, *, whole: bool) -> list[torch.Tensor]:
    """A tensor with whole blocks of zeros for each rank. ``whole``: integers, which float32 sums exactly."""
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-entries // block)
    owner = torch.randint(world, (blocks,), generator=generator)
    common = torch.rand(blocks, generator=generator) < 0.4
    found = []
    for rank in range(world):
        kept = {
            "random": torch.rand(blocks, generator=generator) < 0.4,
            "overlapping": common,
            "disjoint": owner == rank,
            "zero": torch.zeros(blocks, dtype=torch.bool),
            "dense": torch.ones(blocks, dtype=torch.bool),
        }[pattern]
        drawn = torch.randint(1, 99, (entries,), generator=generator).float()
        if not whole:
            drawn *= torch.randn(entries, generator=generator)
        found.append(drawn * kept.repeat_interleave(block)[:entries])
    return found


patterns = st.sampled_from(["random", "overlapping", "disjoint", "zero", "dense"])
shapes = st.fixed_dictionaries({"block": st.integers(1, 6), "fused": st.integers(1, 5), "in_flight": st.integers(1, 3)})


@st.composite
def inputs(draw, *, whole: bool) -> tuple[list[torch.Tensor], dict]:
    """Tensors of all workers and a shape; most lengths are no multiple of the block, and some allow no more streams."""
    workers, shape = draw(st.integers(1, 5)), draw(shapes)
    shape["aggregators"] = draw(st.integers(1, workers))
    entries = draw(st.integers(0, 400))
    return blockwise(workers, entries, shape["block"], draw(patterns), draw(st.integers(0, 999)), whole=whole), shape


@st.composite
def anywhere(draw, *, whole: bool) -> tuple[list[torch.Tensor], dict]:
    """``inputs``, possibly with dedicated aggregators: more ranks, whose tensors contain only NaN."""
    tensors, shape = draw(inputs(whole=whole))
    if draw(st.booleans()):
        shape |= {"aggregators": draw(st.integers(1, 5)), "dedicated": True}
        tensors += [torch.full_like(tensors[0], torch.nan) for _ in range(shape["aggregators"])]
    return tensors, shape


def divided(tensors: list[torch.Tensor], shape: dict) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors of the workers, and the tensors of dedicated aggregators."""
    workers = len(tensors) - shape.get("dedicated", False) * shape["aggregators"]
    return tensors[:workers], tensors[workers:]


@given(anywhere(whole=True))
@examples(3)
def test_all_workers_end_with_the_sum_and_send_what_the_formulas_say(given_):
    tensors, shape = given_
    mine, aggregators = divided(tensors, shape)
    total = torch.stack(mine).sum(0)
    found = [numbers_of(tensor, shape["block"]) for tensor in mine]
    assert summed(tensors, **shape) == by_formula(found, len(total), **shape)
    assert all(torch.equal(tensor, total) for tensor in mine)
    assert all(tensor.isnan().all() for tensor in aggregators)


@given(anywhere(whole=False))
@examples(2)
def test_floats_are_added_in_rank_order_to_the_same_bits_everywhere(given_):
    tensors, shape = given_
    mine, _ = divided(tensors, shape)
    total = torch.zeros_like(mine[0])
    for tensor in mine:
        total += tensor
    summed(tensors, **shape)
    assert all(torch.equal(tensor.view(torch.int32), total.view(torch.int32)) for tensor in mine)


FAST = [((2, 1), "dense"), ((4, 3), "random")]
WHERE = [(2, 1), (2, 2), (4, 1), (4, 3), (4, 4)]  # workers, aggregators
BOUNDS = [
    pytest.param(*where, pattern, dedicated, marks=[] if (where, pattern) in FAST else pytest.mark.slow)
    for where in WHERE for pattern in ("random", "overlapping", "disjoint", "dense") for dedicated in (False, True)
]  # fmt: skip


@pytest.mark.parametrize("workers, aggregators, pattern, dedicated", BOUNDS)
def test_the_bound_is_what_the_busiest_link_carries(workers, aggregators, pattern, dedicated):
    """There are so many blocks that the first bursts and the choice of aggregators hardly count."""
    tensors = blockwise(workers, 20_000, 1, pattern, 0, whole=True)
    own, anybodys = (sum(t.count_nonzero().item() for t in of) / 20_000 / len(of) for of in (tensors, [sum(tensors)]))
    everyone = tensors + [torch.empty(20_000) for _ in range(dedicated * aggregators)]
    carried = torch.zeros(2, len(everyone))  # words out of each rank, and into it

    def note(rank: int, peer_exchange: PeerExchange) -> None:
        carried[0, rank] += sum(map(len, peer_exchange.sends.values()))
        carried[1, rank] += sum(peer_exchange.receives.values())

    shape = {"block": 1, "fused": 64, "in_flight": 1, "aggregators": aggregators, "dedicated": dedicated}
    streamed = zip(*(streams(rank, len(everyone), t, **shape) for rank, t in enumerate(everyone)), strict=True)
    for stream in streamed:
        lockstep.run([one and watched(one, partial(note, rank)) for rank, one in enumerate(stream)])
    ring = 2 * (workers - 1) / workers
    found = ring / (carried.max().item() / 2 / 20_000)  # of each block its number and its entry
    assert streamed_bound(workers, aggregators, dedicated, own, anybodys) == pytest.approx(found, rel=0.06)


@pytest.mark.parametrize("density, published", [(0.01, 38), (0.1, 4.4), (0.2, 2.5)])
def test_with_as_many_aggregators_apart_the_bound_is_the_published_one(density, published):
    assert streamed_bound(4, 4, True, density, 1 - (1 - density) ** 4) == pytest.approx(published, rel=0.02)


PLAIN = {"block": 4, "fused": 1, "in_flight": 1, "aggregators": 1}  # one block per message, one aggregator


@pytest.mark.parametrize("pattern", ["random", "overlapping", "disjoint", "zero", "dense"])
def test_the_published_counts_with_one_block_per_message(pattern):
    tensors = blockwise(4, 200, 4, pattern, 0, whole=True)
    own = [numbers_of(tensor, 4) | {0} for tensor in tensors]
    union = set().union(*own)
    sent = [3 * len(union), *map(len, own[1:])]  # the aggregator is on the host of worker 0
    assert summed(tensors, **PLAIN) == [(n, 20 * n) for n in sent]
    assert (len(union) == 1) == (pattern == "zero") and (len(union) == 50) == (pattern in ("dense", "disjoint"))


@given(blocks=st.integers(1, 5000), fused=st.integers(1, 40), in_flight=st.integers(1, 5), world=st.integers(2, 4))
@examples(0.6)
def test_the_first_burst_is_a_16th_of_the_blocks_or_one_message(blocks, fused, in_flight, world):
    """A tensor of zeros sends only this burst. Each stream's aggregator sends nothing to itself."""
    sent = summed([torch.zeros(blocks) for _ in range(world)], block=1, fused=fused, in_flight=in_flight)
    burst = sum(n for _, n in sent) / (2 * WIRE_BYTES) / (2 * (world - 1))  # there and back, of one worker
    assert min(fused, blocks) <= burst <= max(fused, blocks / 16)
    assert burst == min(fused * world * in_flight, blocks) or burst > blocks / 32


@pytest.mark.parametrize("fused", [1, 7])
def test_zeros_cost_the_first_burst_alone_and_dense_input_sends_each_block_once(fused):
    shape = PLAIN | {"fused": fused}
    nothing = [torch.zeros(200) for _ in range(3)]
    assert summed(nothing, **shape) == [(2, 2 * 20 * fused), (1, 20 * fused), (1, 20 * fused)]
    rounds = -(-50 // fused)
    dense = blockwise(3, 200, 4, "dense", 0, whole=True)
    assert summed(dense, **shape) == [(2 * rounds, 2 * 20 * 50), (rounds, 20 * 50), (rounds, 20 * 50)]


def test_one_worker_keeps_what_it_has_and_sends_nothing():
    (tensor,) = blockwise(1, 30, 4, "random", 0, whole=False)
    before = tensor.clone()
    assert summed([tensor], block=4, fused=2, in_flight=2) == [(0, 0)]
    assert torch.equal(tensor, before)


@given(inputs(whole=True))
def test_no_zero_block_is_sent_after_the_first_burst(given_):
    tensors, shape = given_
    world, width = len(tensors), 1 + shape["block"]
    everyones = [streams(rank, world, tensor, **shape) for rank, tensor in enumerate(tensors)]
    for number, stream in enumerate(zip(*everyones, strict=True)):
        aggregator, uploads = number % shape["aggregators"], [[] for _ in range(world)]

        def note(own: list, peer_exchange: PeerExchange) -> None:
            own.append([message.clone() for message in peer_exchange.sends.values()])

        lockstep.run([watched(ranks, partial(note, uploads[rank])) for rank, ranks in enumerate(stream)])
        for rank in set(range(world)) - {aggregator}:
            for message in chain(*uploads[rank][2:]):  # the first round to the aggregator, and the one from it
                blocks = message[len(message) // width :].view(-1, shape["block"])
                assert blocks.any(1).all()


BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16, torch.bfloat16: torch.int16}


@given(
    dtype=st.sampled_from(list(BITS)), entries=st.integers(0, 60), block=st.integers(1, 70), density=st.floats(0, 1),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_a_block_is_zero_if_all_its_bits_are(dtype, entries, block, density, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(entries, generator=generator) * (torch.rand(entries, generator=generator) < density)
    bits = x.to(dtype).view(BITS[dtype]).tolist()
    assert nonzero_blocks(x.to(dtype), block).tolist() == [any(bits[i : i + block]) for i in range(0, entries, block)]
    assert nonzero_blocks(torch.tensor([0.0, -0.0, 0.0], dtype=dtype), 1).tolist() == [False, True, False]


@given(inputs(whole=True))
@examples(0.4)
def test_streams_under_way_together_sum_and_send_the_same(given_):
    tensors, shape = given_
    total = torch.stack(tensors).sum(0)
    found = [numbers_of(tensor, shape["block"]) for tensor in tensors]

    def work(comm):
        comm.start_streams(streams(comm.rank, comm.world_size, tensors[comm.rank], **shape)).wait()
        return comm.sent_messages, comm.sent_bytes

    assert run_workers(len(tensors), work) == by_formula(found, len(total), **shape)
    assert all(torch.equal(tensor, total) for tensor in tensors)


def test_where_a_round_needs_everybody_several_aggregators_apart_are_refused():
    def work(comm):
        shape = {"block": 1, "fused": 1, "aggregators": 2, "dedicated": True}
        comm.start_streams(streams(comm.rank, comm.world_size, torch.ones(100), **shape)).wait()

    with pytest.raises(ValueError, match=r"rank [12] gave None for a stream; Local needs a coroutine on every rank"):
        run_workers(3, work)


FEW = {"block": 4, "fused": 3, "in_flight": 2}


@pytest.mark.parametrize(
    "name, options", [*((name, {}) for name in METHODS), *(("block_topk", {"over": o}) for o in ("union", "sum"))]
)
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_every_method_ends_with_the_same_bits_as_over_sums_in_rank_order(name, options, workers):
    """The sums of local threads are in rank order, too."""

    def work(comm, **how):
        return exchange_steps(comm, make(name, **options), gradients(comm.rank, 3), **how)

    over, engine = (
        run_workers(workers, partial(work, **how)) for how in ({"collective": "omnireduce", "streams": FEW}, {})
    )
    for one, other in zip(chain(*over), chain(*engine), strict=True):
        assert all(map(torch.equal, one, other))


@given(inputs(whole=True))
@examples(0.6)
def test_an_exchange_counts_what_its_streams_sent(given_):
    tensors, shape = given_
    length, block = len(tensors[0]), shape["block"]
    assume(length)
    own = [numbers_of(tensor, block) for tensor in tensors]
    streams_ = columns_of(-(-length // block), **{key: value for key, value in shape.items() if key != "block"})
    first_burst = {column[0] for _, columns in streams_ for column in columns}

    def work(comm):
        mine = tensors[comm.rank]
        exchange = exchange_of(comm, make("none"), [mine], collective="omnireduce", streams=shape)
        one_step(comm, exchange, [mine], 1)
        sent = [part for number, part in enumerate(mine.split(block)) if number in first_burst | own[comm.rank]]
        assert exchange.sent_entries == [exchange.transport.sent_entries] == [sum(map(len, sent))]
        assert exchange.transport.traffic == Traffic(messages=exchange.transport.sent_bytes)
        return exchange.transport.sent_bytes, exchange.transport.received_bytes

    counted = run_workers(len(tensors), work)
    assert [one for one, _ in counted] == [one for _, one in by_formula(own, length, **shape)]
    assert sum(one for one, _ in counted) == sum(one for _, one in counted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_other_types_are_summed_as_they_are(dtype):
    tensors = [tensor.to(dtype) for tensor in blockwise(3, 201, 4, "random", 0, whole=True)]
    total = tensors[0] + tensors[1] + tensors[2]
    summed(tensors, block=4, fused=3, in_flight=2, aggregators=2)
    assert all(torch.equal(tensor, total) for tensor in tensors)


@pytest.mark.parametrize("dtype, block", [(torch.float16, 3), (torch.float64, 4)])
def test_blocks_that_are_no_whole_words_are_refused(dtype, block):
    with pytest.raises(ValueError, match=f"omnireduce: block: {block} entries of {dtype} do not fit messages of 32"):
        streams(0, 2, torch.zeros(100, dtype=dtype), block=block)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"block": 0}, "block: 0 is not a positive integer; use at least 1"),
        ({"fused": 0}, "fused: 0 is not a positive integer; use at least 1"),
        ({"in_flight": 0}, "in_flight: 0 is not a positive integer; use at least 1"),
        ({"aggregators": 0}, "aggregators: 0 is not a positive integer; use at least 1"),
        ({"aggregators": 3}, "aggregators: 3 aggregators but only 2 ranks; use at most 2"),
        ({"aggregators": 2, "dedicated": True}, "aggregators: 2 dedicated aggregators but only 2 ranks; use at most 1"),
        ({"dedicated": True}, "aggregators: missing, but dedicated is set; give the number of aggregators"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_sent(wrong, said):
    with pytest.raises(ValueError) as refused:
        streams(0, 2, torch.zeros(100), **wrong)
    assert str(refused.value) == f"omnireduce: {said}"
