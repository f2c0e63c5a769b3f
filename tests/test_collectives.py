"""Collectives: the laws of every file in dlgs_bench/comm/collectives, all ranks in lock step, without an engine."""

import operator
from functools import partial

import lockstep
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support import examples, watched

from dlgs_bench import plugins
from dlgs_bench.comm import collectives
from dlgs_bench.comm.collectives import PeerExchange, halving_doubling, ring

pytestmark = pytest.mark.unit

PLAIN = [name for name in plugins.names("collectives") if collectives.is_plain(plugins.load("collectives", name))]
every = pytest.mark.parametrize("name", PLAIN)
worlds = st.integers(1, 16)


def contributions(world: int, entries: int, *, whole: bool, seed: int = 0) -> list[torch.Tensor]:
    """The tensor of each rank. ``whole``: small integers, which float32 sums exactly in any order."""
    generator = torch.Generator().manual_seed(seed)
    if whole:
        return [torch.randint(-99, 99, (entries,), generator=generator).float() for _ in range(world)]
    return [torch.randn(entries, generator=generator) for _ in range(world)]


def summed(name: str, tensors: list[torch.Tensor], **costs) -> lockstep.Outcome:
    collective = plugins.load("collectives", name)
    world = len(tensors)
    return lockstep.run([collective.all_reduce(rank, world, t) for rank, t in enumerate(tensors)], **costs)


def runs_on(name: str, world: int) -> bool:
    return plugins.load("collectives", name).refuses(world) is None


@every
def test_some_world_of_several_ranks_is_not_refused(name):
    assert any(runs_on(name, world) for world in range(2, 10))


@every
@given(world=worlds, entries=st.integers(0, 200))
def test_every_rank_ends_with_the_sum_and_what_it_sends_is_what_it_costs(name, world, entries):
    if not runs_on(name, world):
        with pytest.raises(ValueError, match=f"collective {name} cannot run on {world} ranks: "):
            collectives.load(name, world)
        return
    mine = contributions(world, entries, whole=True)
    total = torch.stack(mine).sum(0)
    outcome = summed(name, mine)
    assert all(map(operator.is_, outcome.results, mine))
    assert all(torch.equal(tensor, total) for tensor in mine)
    costs = [plugins.load("collectives", name).cost(rank, world, entries) for rank in range(world)]
    assert list(zip(outcome.messages, outcome.bytes, strict=True)) == costs
    assert outcome.rounds == plugins.load("collectives", name).rounds(world)


@every
@given(world=worlds, entries=st.integers(1, 200), seed=st.integers(0, 99))
def test_all_ranks_end_with_the_same_bits_close_to_the_sum(name, world, entries, seed):
    assume(runs_on(name, world))
    mine = contributions(world, entries, whole=False, seed=seed)
    total = torch.stack(mine).double().sum(0)
    first, *others = summed(name, mine).results
    assert all(torch.equal(first, other) for other in others)
    torch.testing.assert_close(first.double(), total, atol=1e-5, rtol=0)


def test_a_ring_sends_the_least_and_takes_what_the_formula_says():
    """Each rank sends 2 (N - 1) / N n entries, where N divides n."""
    for world in (2, 3, 8, 128):
        entries = 1000 * world
        nothing = [torch.empty(entries, device="meta") for _ in range(world)]
        outcome = summed("ring", nothing, alpha_s=1e-4, beta_s=1e-9)
        rounds = 2 * (world - 1)
        assert outcome.rounds == rounds
        assert set(outcome.messages) == {rounds}
        assert set(outcome.bytes) == {rounds * 4 * 1000}
        assert outcome.time_s == pytest.approx(rounds * (1e-4 + 1e-9 * 4 * 1000))


def test_halving_and_doubling_sends_what_a_ring_sends_in_as_many_messages_as_the_formula_says():
    """Each rank sends 2 log2 N messages and 2 (N - 1) / N of the bytes of n entries, where N divides n."""
    for world, steps in ((2, 1), (4, 2), (8, 3), (1024, 10)):
        entries = 10 * world
        nothing = [torch.empty(entries, device="meta") for _ in range(world)]
        outcome = summed("halving-doubling", nothing, alpha_s=1.0, beta_s=1e-3)
        sent = 2 * (world - 1) * 4 * 10
        assert (outcome.rounds, set(outcome.messages), set(outcome.bytes)) == (2 * steps, {2 * steps}, {sent})
        assert outcome.time_s == pytest.approx(2 * steps + 1e-3 * sent)


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
@given(entries=st.integers(0, 200))
@examples(0.4)
def test_halving_leaves_disjoint_ranges_and_each_pair_meets_once_per_phase(world, entries):
    seen = [[] for _ in range(world)]  # of each rank what it sends to whom, as (peer, first entry, entries)

    def note(rank: int, peer_exchange: PeerExchange) -> None:
        seen[rank] += [(peer, part.storage_offset(), part.numel()) for peer, part in peer_exchange.sends.items()]

    mine = contributions(world, entries, whole=True)
    rounds = [halving_doubling.all_reduce(rank, world, tensor) for rank, tensor in enumerate(mine)]
    lockstep.run([watched(one, partial(note, rank)) for rank, one in enumerate(rounds)])
    steps = halving_doubling.rounds(world) // 2
    partners = [rank ^ 2**step for rank in range(world) for step in range(steps)]
    assert [peer for sent in seen for peer, *_ in sent[:steps]] == partners
    assert [peer for sent in seen for peer, *_ in reversed(sent[steps:])] == partners
    owned = [(start, n) for sent in seen for _, start, n in sent[steps : steps + 1]] or [(0, entries)]
    assert sorted(start + i for start, n in owned for i in range(n)) == list(range(entries))
    assert max(n for _, n in owned) - min(n for _, n in owned) <= 1


def test_a_round_lasts_as_long_as_its_slowest_rank_in_its_busier_direction():
    """Ranks 1 and 2 send 10 and 30 bytes to rank 0, which sends 8 to rank 1. So rank 0 receives 40."""

    def coroutine(sends, receives):
        yield PeerExchange({to: torch.zeros(n, dtype=torch.uint8) for to, n in sends.items()}, receives, torch.uint8)

    ranks = [coroutine({1: 8}, {1: 10, 2: 30}), coroutine({0: 10}, {0: 8}), coroutine({0: 30}, {})]
    outcome = lockstep.run(ranks, alpha_s=5.0, beta_s=1.0)
    assert (outcome.time_s, outcome.messages, outcome.bytes) == (45.0, [1, 1, 1], [8, 10, 30])


def test_a_header_travels_with_a_message_of_unknown_length_even_an_empty_one():
    def coroutine(rank):
        got = yield PeerExchange({1 - rank: torch.ones(3 * rank)}, {1 - rank: None}, headers=True)
        return got[1 - rank].tolist()

    outcome = lockstep.run([coroutine(0), coroutine(1)], alpha_s=1.0, beta_s=1.0)
    assert outcome.results == [[1.0] * 3, []]
    assert (outcome.messages, outcome.bytes, outcome.time_s) == ([1, 1], [8, 8 + 12], 1 + 20)


def test_an_empty_message_of_known_length_is_not_sent():
    def coroutine(rank):
        got = yield PeerExchange({1 - rank: torch.ones(0)}, {1 - rank: 0})
        return got[1 - rank].tolist()

    outcome = lockstep.run([coroutine(0), coroutine(1)], alpha_s=1.0)
    assert (outcome.results, outcome.messages, outcome.bytes, outcome.time_s) == ([[], []], [0, 0], [0, 0], 0)


def test_a_received_message_is_what_was_sent_though_the_sender_goes_on():
    def coroutine(rank):
        mine = torch.tensor([float(rank)])
        got = yield PeerExchange({1 - rank: mine}, {1 - rank: 1})
        mine += 10
        return got[1 - rank].item()

    assert lockstep.run([coroutine(0), coroutine(1)]).results == [1.0, 0.0]


def rounds(*yielded: PeerExchange):
    """A rank that yields these peer exchanges."""
    return (peer_exchange for peer_exchange in yielded)


TWO = torch.zeros(2)
BROKEN = {
    "round 0: rank 0 sends to rank 1, but rank 1 does not receive from it": [
        [PeerExchange({1: TWO})],
        [PeerExchange()],
    ],
    "round 1: rank 1 receives from rank 0, but rank 0 does not send to it": [
        [PeerExchange()] * 2,
        [PeerExchange(), PeerExchange({}, {0: 2})],
    ],
    "round 0: rank 1 sends to rank 0 2 entries, but rank 0 expects 3": [
        [PeerExchange({}, {1: 3})],
        [PeerExchange({0: TWO})],
    ],
    "round 0: rank 0 sends to rank 0, but rank 0 does not receive from it": [
        [PeerExchange({0: TWO}, {0: 2})],
        [PeerExchange()],
    ],
    "round 0: rank 0 sends to rank 2, but rank 2 does not receive from it": [
        [PeerExchange({2: TWO})],
        [PeerExchange()],
    ],
    "round 1: rank 0 has ended, but rank 1 has not": [[PeerExchange()], [PeerExchange(), PeerExchange()]],
    "round 0: rank 0 sends to rank 1 torch.float32 without headers, but rank 1 expects torch.float32 with headers": [
        [PeerExchange({1: TWO})],
        [PeerExchange({}, {0: None}, headers=True)],
    ],
    "round 0: rank 0 sends to rank 1 torch.float32 without headers, but rank 1 expects torch.uint8 without headers": [
        [PeerExchange({1: TWO})],
        [PeerExchange({}, {0: 2}, torch.uint8)],
    ],
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_would_hang_is_refused_with_its_round_and_its_ranks(message):
    with pytest.raises(ValueError) as refused:
        lockstep.run([rounds(*yielded) for yielded in BROKEN[message]])
    assert str(refused.value) == message


def test_a_ring_that_is_cut_is_refused():
    """Rank 2 sends the wrong way."""

    def cut(rank: int):
        tensor = torch.ones(6)
        if rank != 2:
            return ring.all_reduce(rank, 3, tensor)
        return rounds(*[PeerExchange({1: tensor[:2]}, {1: 2})] * 4)

    with pytest.raises(ValueError, match="round 0: rank 0 receives from rank 2, but rank 2 does not send to it"):
        lockstep.run([cut(rank) for rank in range(3)])


def test_a_round_says_what_is_wrong_with_it():
    with pytest.raises(ValueError, match=r"sends\[1\]: torch.int32 is not the dtype torch.float32"):
        PeerExchange({1: torch.zeros(2, dtype=torch.int32)})
    with pytest.raises(ValueError, match=r"receives\[1\]: None is not a length; give one, or set headers"):
        PeerExchange({}, {1: None})
    with pytest.raises(ValueError, match=r"receives\[1\]: 2 is not None; headers carry the length"):
        PeerExchange({}, {1: 2}, headers=True)


def test_an_unknown_collective_is_refused_by_name():
    with pytest.raises(ValueError, match=r"collective: tree is not a file in dlgs_bench/comm/collectives; use .*ring"):
        collectives.load("tree", 4)
