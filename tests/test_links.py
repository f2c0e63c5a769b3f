"""Costs at other rates and numbers of workers: what must hold whatever was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.timemodel.costs import Fit
from harness.timemodel.links import elsewhere, link_bytes, steps

TOPOLOGIES = ("allgather", "ps-weights", "ps-sparse")
densities = st.one_of(st.none(), st.floats(0.001, 1))
places = st.tuples(st.integers(2, 1024), st.floats(1, 400_000))


@given(st.sampled_from(TOPOLOGIES), densities, places, st.floats(0, 1e-2), st.floats(1e-10, 1e-6), st.floats(0, 1e-2))
def test_at_home_nothing_changes_unless_the_link_alone_would_take_longer(topology, density, here, alpha, beta, once):
    fit = Fit(alpha, beta, 1.0, once)
    workers, rate = here
    on_link = link_bytes(topology, density, workers) * 8e-6 / rate
    same = elsewhere(fit, topology, density, here, here)
    assert same.alpha == pytest.approx(alpha) and same.beta == pytest.approx(max(beta, on_link))


@given(st.sampled_from(TOPOLOGIES), densities, places, st.floats(1.01, 100))
def test_faster_links_never_cost_more_and_more_workers_never_less(topology, density, here, factor):
    fit = Fit(1e-3, 1e-8, 1.0, 1e-3)
    workers, rate = here
    faster = elsewhere(fit, topology, density, here, (workers, rate * factor))
    larger = elsewhere(fit, topology, density, here, (workers + 1, rate))
    assert faster(1e6) <= elsewhere(fit, topology, density, here, here)(1e6) <= larger(1e6) * (1 + 1e-9)


def test_bytes_on_the_busiest_link_by_hand():
    assert link_bytes("allgather", None, 2) == 4  # a ring of two: each sends half twice
    assert link_bytes("allgather", 0.01, 4) == pytest.approx(3 * 0.08)
    assert link_bytes("ps-weights", 0.01, 3) == 12  # weights are pulled dense
    assert link_bytes("ps-sparse", 0.01, 3) == pytest.approx(3 * 3 * 0.08)
    assert [steps("allgather", None, 4), steps("allgather", 0.1, 4), steps("ps-weights", 0.1, 4)] == [6, 3, 2]
