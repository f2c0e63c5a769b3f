"""Communicators: the same answers on local threads and on the processes of every real engine, two to four.

What each rank asks is in comm_parts.py, where ``seen`` runs once per engine and number of ranks.
"""

from collections.abc import Callable
from functools import cache, reduce
from itertools import product

import comm_parts
import pytest
import torch
from comm_parts import (
    BUCKETS,
    ENTRIES,
    GATHERED,
    LONG,
    REDUCED,
    another_length,
    length,
    long,
    message,
    numbers,
    seen,
    summed,
)  # fmt: skip
from hybrid_parts import ROWS
from support import NEEDS
from test_hybrid import compare
from test_omnireduce import by_formula, numbers_of
from world import World

from dlgs_bench import plugins
from dlgs_bench.comm.collectives import PeerExchange, is_plain
from dlgs_bench.comm.hybrid_messages import Layout
from dlgs_bench.comm.local import run_workers
from dlgs_bench.engines import ENGINES

SIZES = {"local": (2, 3, 4), "torch_dist": (2, 3, 4), "horovod": (2, 4)}  # test_engines.py trains on 3 of Horovod's
WORLDS = {
    "local": [pytest.param(("local", size), marks=pytest.mark.unit, id=f"local-{size}") for size in SIZES["local"]]
}
for name in ENGINES:
    marks = {
        size: [pytest.mark.engine, *NEEDS[name], *([pytest.mark.slow] if size > 2 else [])] for size in SIZES[name]
    }
    WORLDS[name] = [pytest.param((name, size), marks=marks[size], id=f"{name}-{size}") for size in SIZES[name]]


@pytest.fixture(scope="module")
def observed(worlds) -> Callable[[str, int], list[dict]]:
    """What the ranks of a world saw, by rank."""

    @cache
    def ranks(engine: str, size: int) -> list[dict]:
        if engine == "local":
            return run_workers(size, lambda comm: seen(comm, engine))
        if size == 2:
            return worlds(engine).run(seen, engine)
        with World(engine, size) as world:
            return world.run(seen, engine)

    return ranks


@pytest.fixture(params=[world for worlds in WORLDS.values() for world in worlds])
def ranks(request, observed) -> list[dict]:
    return observed(*request.param)


def on(engine: str) -> pytest.MarkDecorator:
    """Parametrize a test with the worlds of this engine only."""
    return pytest.mark.parametrize("ranks", WORLDS[engine], indirect=True)


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Whether tensors are equal to the bit, in dtype, too. They may be empty."""
    pairs = zip(found, expected, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def maximum(tensors: list[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.maximum, tensors)


def from_others(rank: int, world: int, dtype: torch.dtype, bucket: int = 0) -> dict[int, torch.Tensor]:
    return {peer: message(peer, rank, dtype, bucket) for peer in range(world) if peer != rank}


def test_any_dtype_is_gathered_in_any_lengths(ranks):
    world = range(len(ranks))
    for dtype in GATHERED:
        everyones = [numbers(length(rank), dtype, rank) for rank in world]
        assert any(not t.numel() for t in everyones)
        for found in ranks:
            assert same(found[f"gather {dtype}"], everyones), dtype
            assert same(found[f"gather equal {dtype}"], [numbers(5, dtype, rank) for rank in world]), dtype


def test_long_messages_are_gathered_together_with_longer_ones(ranks):
    for found in ranks:
        for turn in range(len(LONG)):
            assert same(found[f"gather long {turn}"], [long(rank, turn) for rank in range(len(ranks))])


def test_an_engine_can_say_when_a_communication_ended(ranks):
    """The recorded time is the end of the communication. It is not the time at which the caller looked."""
    for found in ranks:
        assert all(made < ended < looked for made, ended, looked in found["ends"])


def test_the_maximum_is_taken_entry_by_entry(ranks):
    for dtype in REDUCED:
        expected = maximum([numbers(9, dtype, rank) for rank in range(len(ranks))])
        for found in ranks:
            assert same([found[f"max {dtype}"]], [expected]), dtype


def test_a_round_brings_what_the_peers_sent_and_is_counted(ranks):
    world = len(ranks)
    for dtype, headers in product(GATHERED, (False, True)):
        for rank, found in enumerate(ranks):
            answer, sent = found[f"round {dtype} {headers}"]
            expected = from_others(rank, world, dtype)
            assert answer.keys() == expected.keys(), dtype
            assert same([answer[peer] for peer in expected], list(expected.values())), dtype
            mine = [message(rank, peer, dtype) for peer in range(world) if peer != rank]
            full = [t for t in mine if t.numel() or headers]
            assert sent == (len(full), sum(t.nbytes + 8 * headers for t in full)), dtype


PLAIN = [name for name in plugins.names("collectives") if is_plain(plugins.load("collectives", name))]


def test_collectives_sum_as_the_engine_does_and_send_what_they_cost(ranks):
    taken = {name for name in PLAIN if not plugins.load("collectives", name).refuses(len(ranks))}
    assert "ring" in taken
    keys = {f"sum {name} {entries}": (name, entries) for name in taken for entries in ENTRIES}
    for rank, found in enumerate(ranks):
        assert {key for key in found if key.startswith("sum ")} == keys.keys()
        for key, (name, entries) in keys.items():
            ours, sent, engines = found[key]
            assert torch.equal(ours, ranks[0][key][0]), key
            torch.testing.assert_close(ours, engines, atol=1e-4, rtol=0)
            assert sent == plugins.load("collectives", name).cost(rank, len(ranks), entries), key


def test_omnireduce_sums_on_real_processes_and_sends_what_the_formulas_say(ranks, request):
    engine, world = request.node.callspec.params["ranks"]
    shapes = comm_parts.shapes(world, engine not in ENGINES or ENGINES[engine].requires_all_ranks)
    assert {key for key in ranks[0] if key.startswith("omnireduce")} == {f"omnireduce {n}" for n in range(len(shapes))}
    for which, shape in enumerate(shapes):
        everyones = [comm_parts.sparse_blocks(rank, shape["block"]) for rank in range(world)]
        workers = world - shape["aggregators"] * ("dedicated" in shape)
        mine = everyones[:workers]
        sent = by_formula([numbers_of(tensor, shape["block"]) for tensor in mine], len(mine[0]), **shape)
        for rank, found in enumerate(ranks):
            total, counted = found[f"omnireduce {which}"]
            assert torch.equal(total, sum(mine) if rank < workers else everyones[rank])
            assert counted == sent[rank]


def test_hybrid_parallelism_on_real_processes_equals_training_on_one_device(ranks):
    compare([found["hybrid"] for found in ranks], Layout(len(ranks), len(ranks) // 2, ROWS))


def test_requests_of_all_kinds_in_flight_together_are_not_mixed_up(ranks):
    world = range(len(ranks))
    for rank, found in enumerate(ranks):
        for bucket in range(BUCKETS):
            got = {what: found[f"in flight: {what} {bucket}"] for what in ("engine", "relay", "gather", "round", "max")}
            total = torch.stack([numbers(101, torch.float32, r, bucket).round() for r in world]).sum(0)
            assert torch.equal(got["engine"], total)
            for name in PLAIN:
                assert torch.equal(found.get(f"in flight: {name} {bucket}", total), total)
            start = (rank - 5) % len(world)  # of the number that this rank holds after five rounds
            passed = sum((start + i) % len(world) for i in range(1, 6))
            assert got["relay"].item() == bucket * 10 + start + passed
            assert same(got["gather"], [numbers(length(r, 0, bucket), torch.uint8, r, 0, bucket) for r in world])
            assert same([got["max"]], [maximum([numbers(11, torch.float32, r, bucket) for r in world])])
            expected = from_others(rank, len(world), torch.bfloat16, bucket)
            assert same([got["round"][peer] for peer in expected], list(expected.values()))


@on("torch_dist")
def test_on_torch_distributed_a_group_of_some_ranks_is_a_world_of_its_own(ranks):
    some = range(len(ranks) - 1)  # places in the group of all ranks but the first
    for place in some:
        found = ranks[1 + place]["among some"]
        assert same(found["gather"], [numbers(length(other), torch.float32, other) for other in some])
        expected = from_others(place, len(some), torch.float32)
        assert same([found["round"][peer] for peer in expected], list(expected.values()))
        assert found["max"].item() == len(some)
        assert torch.equal(found["broadcast"], numbers(5, torch.float32, some[-1]))


@on("torch_dist")
def test_on_gloo_a_short_message_waits_for_the_network_once_also_in_the_group_of_a_hook(ranks):
    """The group of a hook has a backend per type of device, and torch.distributed.get_backend names all of them."""
    for found in ranks:
        assert found["messages"] == 2 * [[1, 1, 1, 2]]


@pytest.mark.unit
def test_one_rank_alone_sends_nothing():
    for found in run_workers(1, summed)[0].values():
        ours, sent, engines = found
        assert torch.equal(ours, engines)
        assert sent == (0, 0)


@on("horovod")
def test_a_message_of_another_length_than_expected_is_an_error_on_horovod(ranks):
    world = len(ranks)
    for rank, found in enumerate(ranks):
        left = (rank - 1) % world
        assert found["another length"] == f"rank {rank} received 2 entries from rank {left}, but expected 3"


@pytest.mark.unit
def test_on_local_threads_a_round_that_would_hang_is_an_error_with_its_ranks():
    said = "rank 0 sends to rank 1 2 entries, but rank 1 expects 3"
    assert run_workers(2, another_length) == [said] * 2

    def unheard(comm):
        comm.start_round(PeerExchange({1: torch.zeros(2)} if comm.rank == 0 else {})).wait()

    with pytest.raises(ValueError, match="rank 0 sends to rank 1, but rank 1 does not receive from it"):
        run_workers(2, unheard)


@pytest.mark.unit
def test_an_error_in_a_coroutine_reaches_the_rank_that_waits_for_it():
    def broken(comm):
        yield PeerExchange()
        raise KeyError(f"of rank {comm.rank}")

    with pytest.raises(KeyError, match="of rank"):
        run_workers(2, lambda comm: comm.start_rounds(broken(comm)).wait())
