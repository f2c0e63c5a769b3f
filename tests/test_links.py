"""Costs at other rates and numbers of workers: what must hold whatever was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.timemodel.costs import Fit
from harness.timemodel.links import elsewhere
from harness.timemodel.predict import sum_rounds
from harness.topology import TOPOLOGIES, Traffic

some_bytes = st.one_of(st.just(0.0), st.floats(0.01, 8))
topologies = st.sampled_from(list(TOPOLOGIES.values()))
traffics = st.builds(Traffic, some_bytes, some_bytes, some_bytes)
places = st.tuples(st.integers(2, 1024), st.floats(1, 400_000))


@given(topologies, traffics, places, st.floats(0, 1e-2), st.floats(1e-10, 1e-6), st.floats(0, 1e-2))
def test_at_home_nothing_changes_unless_the_link_alone_would_take_longer(topology, traffic, here, alpha, beta, once):
    workers, rate = here
    on_link = topology.link_bytes(traffic, 1, workers) * 8e-6 / rate
    same = elsewhere(Fit(alpha, beta, 1.0, once), topology, traffic, here, here)
    assert same.alpha == pytest.approx(alpha) and same.beta == pytest.approx(max(beta, on_link))


@given(topologies, traffics, places, st.floats(1.01, 100))
def test_faster_links_never_cost_more_and_more_workers_never_less(topology, traffic, here, factor):
    fit = Fit(1e-3, 1e-8, 1.0, 1e-3)
    workers, rate = here
    faster = elsewhere(fit, topology, traffic, here, (workers, rate * factor))
    larger = elsewhere(fit, topology, traffic, here, (workers + 1, rate))
    at_home = elsewhere(fit, topology, traffic, here, here)(1e6)
    assert faster(1e6) <= at_home <= larger(1e6) * (1 + 1e-9)


def test_half_the_bytes_take_half_as_long_on_a_link_that_is_all_the_cost():
    all_gather, here = TOPOLOGIES["allgather"], (2, 1.0)
    whole, half = (
        elsewhere(Fit(0.0, 0.0, 1.0), all_gather, Traffic(summed=4.0 * part), here, (8, 1.0)) for part in (1, 0.5)
    )
    assert half.beta == pytest.approx(whole.beta / 2)


def test_bytes_and_waits_on_the_busiest_link_by_hand():
    all_gather, weights, sums = (TOPOLOGIES[name] for name in ("allgather", "ps-weights", "ps-sparse"))
    dense, sparse = Traffic(summed=4.0), Traffic(gathered=0.08)
    assert all_gather.link_bytes(dense, 1, 2) == 4  # a ring of two: each sends half twice
    assert all_gather.link_bytes(sparse, 1, 4) == pytest.approx(3 * 0.08)
    assert weights.link_bytes(dense, 1, 3) == 3 * (4 + 4)  # the pushes, then the answers
    assert weights.link_bytes(sparse, 1, 3) == pytest.approx(3 * (0.08 + 4))  # weights are pulled dense
    assert sums.link_bytes(sparse, 1, 3) == pytest.approx(3 * (0.08 + 3 * 0.08))
    assert [all_gather.waits(dense, 4), all_gather.waits(sparse, 4), weights.waits(sparse, 4)] == [6, 3, 2]


def test_the_time_model_knows_how_often_a_collective_waits_up_to_1024_workers():
    """Two workers meet twice in every all-reduce; 1,024 make 2 x 1,023 rounds in a ring, 2 x 10 by halving."""
    all_gather, dense = TOPOLOGIES["allgather"], Traffic(summed=4.0)
    for collective, rounds in {"engine": 2046, "ring": 2046, "halving-doubling": 20}.items():
        waits = sum_rounds(collective)
        assert (waits(2), waits(1024)) == (2, rounds)
        there = elsewhere(Fit(0.0, 0.0, 1.0, once=1e-3), all_gather, dense, (2, 100.0), (1024, 100.0), waits)
        assert there.alpha == pytest.approx(1e-3 / 2 * (rounds - 2))
        assert there.beta == pytest.approx(2 * 1023 / 1024 * 4 * 8e-6 / 100)
