"""Costs at other rates and numbers of workers: what must hold whatever was measured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlgs_bench.timemodel.costs import Curve
from dlgs_bench.timemodel.links import Network, longest_wait, project_costs
from dlgs_bench.timemodel.predict import sum_rounds
from dlgs_bench.timemodel.timeline import Costs
from dlgs_bench.topology import TOPOLOGIES, Traffic

pytestmark = pytest.mark.unit

some_bytes = st.one_of(st.just(0.0), st.floats(0.01, 8))
topologies = st.sampled_from(list(TOPOLOGIES.values()))
traffics = st.builds(Traffic, some_bytes, some_bytes, some_bytes)
networks = st.builds(Network, st.integers(2, 1024), st.floats(1, 400_000), st.floats(0, 50))


SIZES = (256.0, 1e4, 1e6)


def costs(alpha: float, beta: float, latency_s: float = 0.0) -> Costs:
    """Turns of alpha + beta * entries."""
    turn = Curve(SIZES, tuple(alpha + beta * size for size in SIZES))
    return Costs(0.0, [], Curve(SIZES, (0.0,) * 3), turn, Curve(SIZES, (latency_s,) * 3))


@given(topologies, traffics, networks, st.floats(0, 1e-2), st.floats(1e-10, 1e-6), st.floats(0, 1e-2))
def test_at_home_nothing_changes_unless_the_link_alone_would_take_longer(
    topology, traffic, here, alpha, beta, latency_s
):
    calibration = costs(alpha, beta, latency_s)
    same = project_costs(calibration, topology, traffic, here, here)
    on_link = topology.link_bytes(traffic, 1, here.workers) * 8e-6 / here.rate_mbit
    for size in SIZES:
        assert same.communicate(size) == pytest.approx(max(calibration.communicate(size), on_link * size))
        assert same.latency(size) >= latency_s * (1 - 1e-9)
    if on_link <= beta:
        assert same.latency(0) == pytest.approx(latency_s)


@given(topologies, traffics, networks, st.floats(1.01, 100))
def test_faster_links_never_cost_more_and_more_workers_or_latency_never_less(topology, traffic, here, factor):
    calibration = costs(1e-3, 1e-8, 1e-3)

    def cost(there: Network) -> float:
        found = project_costs(calibration, topology, traffic, here, there)
        return found.communicate(1e6) + found.latency(1e6)

    assert cost(replace(here, rate_mbit=here.rate_mbit * factor)) <= cost(here) * (1 + 1e-9)
    assert cost(here) <= cost(replace(here, workers=here.workers + 1)) * (1 + 1e-9)
    assert cost(here) <= cost(replace(here, latency_ms=here.latency_ms + factor)) * (1 + 1e-9)


@given(st.integers(1, 50), st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_contention_is_the_longest_of_the_other_workers_waits(others, here, seed):
    waits = np.random.default_rng(seed).exponential(1.0, (4000, others)).max(axis=1)
    assert longest_wait(others + 1) == pytest.approx(waits.mean(), abs=6 * waits.std() / 4000**0.5)
    calibration = replace(costs(1e-3, 1e-8), contention_s=1.0)
    there = Network(others + 1, 100.0)
    found = project_costs(calibration, TOPOLOGIES["allgather"], Traffic(gathered=1.0), Network(here, 100.0), there)
    assert found.contention_s == pytest.approx(longest_wait(others + 1) / longest_wait(here))


def test_each_step_of_an_exchange_waits_for_a_round_trip():
    """Two workers in a ring wait twice in a sum and once in a gather; sums of a bucket follow each other."""
    all_gather, here, there = TOPOLOGIES["allgather"], Network(2, 100.0), Network(2, 100.0, latency_ms=5.0)
    for traffic, steps in ((Traffic(summed=4.0), 2), (Traffic(summed=0.1, sums=2), 4), (Traffic(gathered=0.08), 1)):
        far = project_costs(costs(1e-3, 1e-6, 1e-3), all_gather, traffic, here, there)
        near = project_costs(costs(1e-3, 1e-6, 1e-3), all_gather, traffic, here, here)
        assert far.communicate(1e6) - near.communicate(1e6) == pytest.approx(steps * 10e-3)
        assert far.latency(1e6) == near.latency(1e6)
        back = project_costs(far, all_gather, traffic, there, here)
        assert back.communicate(1e6) == pytest.approx(near.communicate(1e6))


@pytest.mark.parametrize(("collective", "workers", "steps"), [("ring", 2, 2), ("halving-doubling", 8, 6)])
@pytest.mark.parametrize("latency_s", [0.0, 1e-3])
def test_fewer_steps_still_cost_the_processors_their_part_of_the_smallest_bucket(collective, workers, steps, latency_s):
    """From a ring of 8 workers, which makes 14 steps, to fewer steps. Nearly all of the cost is time on the link.

    So the processors' part of the smallest bucket is less than what the steps that are saved took.
    """
    dense, here, there = Traffic(summed=4.0), Network(8, 100.0), Network(workers, 100.0)
    link_s, other_link_s = (2 * (each - 1) / each * 4 * 8e-6 / 100 for each in (8, workers))
    calibration = costs(1e-9, link_s, latency_s)
    found = project_costs(
        calibration, TOPOLOGIES["allgather"], dense, here, there, sum_rounds("ring"), sum_rounds(collective)
    )
    smallest_s = 1e-9 + SIZES[0] * link_s + latency_s
    for size in SIZES:
        assert found.communicate(size) == pytest.approx(smallest_s * steps / 14 + size * other_link_s)


def test_each_further_step_costs_a_part_of_the_smallest_bucket_and_its_latency():
    """From 2 workers, which make 2 steps in a ring, to 8, which make 14. The link is too fast to count."""
    fast, many = (Network(workers, 1e12) for workers in (2, 8))
    found = project_costs(costs(4e-3, 0.0, 1e-3), TOPOLOGIES["allgather"], Traffic(summed=4.0), fast, many)
    assert found.communicate(1e6) == pytest.approx(4e-3 + 12 * (4e-3 + 1e-3) / 2)


@pytest.mark.parametrize("workers", [3, 8, 64])
def test_processors_handle_the_bytes_of_all_workers(workers):
    """A gather of N workers receives N - 1 messages of the same size; a ring sends 2 (N - 1) / N of a sum's bytes."""
    all_gather, fast, many = TOPOLOGIES["allgather"], Network(2, 1e12), Network(workers, 1e12)
    measured = costs(1e-3, 1e-8)
    gathered = project_costs(measured, all_gather, Traffic(gathered=0.08), fast, many)
    summed = project_costs(measured, all_gather, Traffic(summed=4.0), fast, many)
    smallest_s = measured.communicate(0)
    for size in SIZES:
        assert gathered.communicate(size) == pytest.approx((workers - 1) * measured.communicate(size))
        by_bytes = (measured.communicate(size) - smallest_s) * 2 * (workers - 1) / workers
        assert summed.communicate(size) == pytest.approx((workers - 1) * smallest_s + by_bytes)


@pytest.mark.parametrize("workers", [3, 8, 64])
def test_each_step_of_a_gather_takes_the_latency_of_one_step(workers):
    """The latency is not counted again for the steps that it is in already."""
    all_gather, fast, many = TOPOLOGIES["allgather"], Network(2, 1e12), Network(workers, 1e12)
    for beta in (0.0, 1e-8):
        measured = costs(1e-3, beta, 2e-3)
        found = project_costs(measured, all_gather, Traffic(gathered=0.08), fast, many)
        size = SIZES[0] if beta else SIZES[-1]
        whole_s = found.communicate(size) + found.latency(size)
        assert whole_s == pytest.approx((workers - 1) * (measured.communicate(size) + 2e-3))


@given(st.lists(st.floats(1e-4, 1e-2), min_size=3, max_size=3), st.integers(2, 64), st.floats(1, 1e6))
def test_a_disturbed_or_hidden_time_makes_no_larger_gather_faster_than_a_smaller_one(seconds, workers, rate_mbit):
    """Also if the links of the calibration let short messages pass at once, faster than their rate."""
    flat = Curve(SIZES, (0.0,) * 3)
    measured = Costs(0.0, [], flat, Curve(SIZES, tuple(np.maximum.accumulate(seconds))), flat)
    there = Network(workers, rate_mbit)
    found = project_costs(measured, TOPOLOGIES["allgather"], Traffic(gathered=0.08), Network(2, 100.0), there)
    taken = [found.communicate(size) for size in SIZES]
    assert taken == sorted(taken) and taken[0] > 0


def test_half_the_bytes_take_half_as_long_on_a_link_that_is_all_the_cost():
    all_gather, here = TOPOLOGIES["allgather"], Network(2, 1.0)
    whole, half = (
        project_costs(costs(0.0, 1e-9), all_gather, Traffic(summed=4.0 * part), here, Network(8, 1.0))
        for part in (1, 0.5)
    )
    assert half.communicate(1e6) == pytest.approx(whole.communicate(1e6) / 2)


def test_bytes_and_waits_on_the_busiest_link_by_hand():
    all_gather, weights, sums = (TOPOLOGIES[name] for name in ("allgather", "ps-weights", "ps-sparse"))
    dense, sparse = Traffic(summed=4.0), Traffic(gathered=0.08)
    assert all_gather.link_bytes(dense, 1, 2) == 4  # a ring of two: each sends half twice
    assert all_gather.link_bytes(sparse, 1, 4) == pytest.approx(3 * 0.08)
    assert weights.link_bytes(dense, 1, 3) == 3 * (4 + 4)  # the pushes, then the answers
    assert weights.link_bytes(sparse, 1, 3) == pytest.approx(3 * (0.08 + 4))  # weights are pulled dense
    assert sums.link_bytes(sparse, 1, 3) == pytest.approx(3 * (0.08 + 3 * 0.08))
    assert sums.link_bytes(Traffic(gathered=2.0), 1, 3) == 3 * (2 + 4)  # a sum of three pushes is sent dense
    assert [sums.link_bytes(Traffic(summed=sent), 1, 3) for sent in (1.0, 2.0)] == [3 * (1 + 4), 3 * (2 + 4)]
    twice = Traffic(summed=0.1, sums=2)
    ways = ((all_gather, dense), (all_gather, twice), (all_gather, sparse), (weights, sparse), (weights, twice))
    assert [way.steps(traffic, 4) for way, traffic in ways] == [6, 12, 3, 2, 4]
    assert [way.waits(traffic, 4) for way, traffic in ways] == [6, 12, 1, 2, 4]


def test_the_time_model_knows_how_often_a_collective_waits_up_to_1024_workers():
    """Two workers wait twice in every all-reduce; 1,024 workers wait 2 x 1,023 times in a ring, 2 x 10 times by
    halving."""
    all_gather, dense = TOPOLOGIES["allgather"], Traffic(summed=4.0)
    for collective, rounds in {"engine": 2046, "ring": 2046, "halving-doubling": 20}.items():
        waits = sum_rounds(collective)
        assert (waits(2), waits(1024)) == (2, rounds)
        two, many = Network(2, 100.0), Network(1024, 100.0)
        there = project_costs(costs(1e-3, 0.0), all_gather, dense, two, many, waits).communicate
        on_link = 2 * 1023 / 1024 * 4 * 8e-6 / 100
        here = 4 * 8e-6 / 100  # of two workers, each sends half twice
        expected = max(0.0, 1e-3 - 1e6 * here) + 1e-3 / 2 * (rounds - 2) + 1e6 * on_link
        assert there(1e6) == pytest.approx(expected)
    with pytest.raises(ValueError, match="omnireduce has no time model, since what it sends depends on the gradient"):
        sum_rounds("omnireduce")
