"""Costs meet what was measured, never fall with the size, and say when samples scatter."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from dlgs_bench.timemodel.costs import (
    amortised,
    backward_of_slowest,
    calibration,
    contention,
    curve,
    interference,
    link_occupancy,
    slope,
    traffic_per_entry,
)
from dlgs_bench.timemodel.planner import exact

pytestmark = pytest.mark.unit

SIZES = np.logspace(2.5, 7.4, 9).round()


def sent(seconds_of, counts=(1, 8)) -> pd.DataFrame:
    """Samples of every size, sent alone and together, which take ``seconds_of(entries, buckets)``."""
    rows = [(n, size, seconds_of(size, n)) for n in counts for size in SIZES if n == 1 or size < 1e6]
    samples = pd.DataFrame(rows, columns=["buckets", "entries", "communication_s"])
    return samples.assign(overlapped=False, phase="step", share=1.0)


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-7), st.floats(1e-6, 1e-2), st.floats(0, 2))
def test_a_turn_on_the_link_is_told_from_the_latency_that_buckets_share(alpha, beta, once, fill):
    """A server receives a bucket before it sends it back, while other buckets already use the link (``fill``)."""
    turn, latency = link_occupancy(sent(lambda d, n: once + fill * beta * d + n * (alpha + beta * d)))
    small = SIZES[SIZES < 1e6]
    assert turn(small) == pytest.approx(alpha + beta * small, rel=1e-6)
    assert latency(small) == pytest.approx(once + fill * beta * small, rel=1e-6, abs=1e-12)
    large = SIZES[SIZES >= 1e6]  # known alone: together they take what was measured
    assert turn(large) + latency(large) == pytest.approx(once + alpha + (1 + fill) * beta * large)


def test_buckets_that_were_never_sent_together_have_turns_as_long_as_they_last():
    turn, latency = link_occupancy(sent(lambda d, n: 1e-3 + 1e-9 * d, counts=(1,)))
    assert turn(SIZES) == pytest.approx(1e-3 + 1e-9 * SIZES) and latency(SIZES) == pytest.approx(0)


@given(st.lists(st.floats(0, 10), min_size=2, max_size=9))
def test_what_contradicts_that_larger_messages_cost_more_is_evened_out(seconds):
    samples = pd.DataFrame(
        {"entries": SIZES[: len(seconds)], "buckets": 1, "overlapped": False, "communication_s": seconds}
    )
    found = link_occupancy(samples.assign(phase="step", share=1.0))[0].seconds
    assert list(found) == sorted(found) and sum(found) == pytest.approx(sum(seconds))
    if seconds == sorted(seconds):
        assert found == pytest.approx(seconds)


@examples(0.4)
@given(st.floats(0, 1e-2), st.lists(st.floats(0, 1e-3), min_size=9, max_size=9))
def test_what_a_communication_waits_for_a_core_is_the_mean_over_the_sizes(wait, odd):
    """The mean is over sizes that were timed together with computing. Without such a size, nothing is added."""
    idle = sent(lambda d, n: 1e-3 + n * 1e-9 * d)
    overlapped = idle[idle["buckets"] == 8].assign(overlapped=True)
    assert contention(idle) == 0
    longer = wait + np.array(odd)[: len(overlapped)]
    assert contention(
        pd.concat([idle, overlapped.assign(communication_s=overlapped["communication_s"] + 8 * longer)])
    ) == (pytest.approx(np.mean(longer)))
    assert contention(pd.concat([idle, overlapped.assign(communication_s=0.0)])) == 0


@given(st.floats(-1e-2, 1e-2), st.floats(0, 1e-8))
def test_what_a_communication_takes_from_computing_is_known_of_one_bucket(once, each):
    """The cost of one bucket does not depend on how many were sent together. A negative cost counts as zero."""
    samples = pd.concat([sent(lambda d, n: 1.0), sent(lambda d, n: 1.0).assign(overlapped=True)])
    assert interference(samples[~samples["overlapped"]].assign(taken_s=0.0))(SIZES) == pytest.approx(0)
    samples = samples[(samples["buckets"] == 8) == (samples["entries"] < 1e6)]
    lost = once + each * samples["entries"]
    found = interference(samples.assign(taken_s=samples["overlapped"] * samples["buckets"] * lost))
    assert found(SIZES) == pytest.approx(np.maximum(0, once + each * SIZES), abs=1e-12)


@given(st.lists(st.floats(1e-6, 1), min_size=9, max_size=9))
def test_a_curve_meets_its_points_and_goes_on_beyond_them(seconds):
    found = curve(SIZES, seconds)
    assert found(SIZES) == pytest.approx(seconds)
    assert found(2 * SIZES[-1]) == pytest.approx(2 * seconds[-1]) and found(1) == pytest.approx(seconds[0])


def test_a_curve_takes_the_median_of_a_size():
    entries, seconds = np.repeat(SIZES, 3), np.tile([1.0, 2.0, 50.0], len(SIZES))
    assert curve(entries, seconds)(SIZES) == pytest.approx(np.full(len(SIZES), 2.0))
    assert curve(SIZES, 0 * SIZES)(SIZES) == pytest.approx(0)


@given(st.floats(0, 100), st.floats(1e-3, 10))
def test_a_slope_is_found_again_and_one_odd_value_hardly_moves_it(header, each):
    values = header + each * SIZES
    assert slope(SIZES, values) == pytest.approx(each, rel=1e-3)
    values[3] *= 20
    assert slope(SIZES, values) == pytest.approx(each, rel=0.05)


def test_phases_are_amortised_by_their_share():
    rows = [(10, "refresh", 0.25, 4.0), (10, "reuse", 0.75, 1.0), (10, "reuse", 0.75, 1.2), (10, "reuse", 0.75, 9.0)]
    samples = pd.DataFrame(rows, columns=["entries", "phase", "share", "sparsify_s"]).assign(buckets=1)
    assert amortised(samples, "sparsify_s")["sparsify_s"].tolist() == pytest.approx([0.25 * 4 + 0.75 * 1.2])


@given(st.lists(st.lists(st.floats(0.1, 9), min_size=3, max_size=3), min_size=1, max_size=9), st.floats(0, 2))
def test_backward_of_the_slowest_is_whole_passes_and_the_wait_for_it(passes, wait):
    """The median of whole passes counts, not the sum of medians, which is less if each pass is slow somewhere else."""
    rows = [{"layer": layer, "backward_s": value} for each in passes for layer, value in enumerate(each)]
    found = backward_of_slowest(pd.DataFrame(rows), wait)
    assert sum(found) == pytest.approx(np.median([sum(each) for each in passes]) + wait)
    assert np.array(found) / found[0] == pytest.approx(np.median(passes, axis=0) / np.median(passes, axis=0)[0])


def test_waits_are_amortised_as_means():
    """One wait of four is long. Selection does not wait, so its median counts."""
    rows = pd.DataFrame(
        {"entries": 10, "buckets": 1, "phase": "step", "share": 1.0, "sparsify_s": [1.0, 1.0, 1.0, 9.0]}
    )
    rows = rows.assign(communication_s=rows["sparsify_s"])
    assert amortised(rows, "sparsify_s")["sparsify_s"].tolist() == [1.0]
    assert amortised(rows, "communication_s")["communication_s"].tolist() == [3.0]


KINDS = {"summed_bytes": "summed", "gathered_bytes": "gathered", "message_bytes": "messages"}
BYTES = dict.fromkeys(KINDS, 0.0)
SENT = BYTES | {"sums": 0}


@given(st.floats(0.01, 4), st.floats(0, 100), st.sampled_from(list(BYTES)), st.integers(0, 3))
def test_traffic_is_found_for_each_kind_apart_and_headers_are_left_out(each, header, kind, sums):
    samples = pd.concat(
        pd.DataFrame({"entries": SIZES, "buckets": n, "phase": phase, "share": share}).assign(
            **BYTES | {kind: n * (header + factor * each * SIZES), "sums": n * sums}
        )
        for n in (1, 8)
        for phase, share, factor in (("refresh", 0.25, 2.0), ("reuse", 0.75, 1.0))
    )
    found = traffic_per_entry(samples)
    assert found.sent == pytest.approx(1.25 * each, rel=1e-3)
    assert getattr(found, KINDS[kind]) == found.sent and found.sums == pytest.approx(sums)


def test_samples_become_costs_that_planners_take():
    layers = pd.DataFrame({"layer": [0, 0, 1, 1], "entries": [10, 10, 99, 99], "backward_s": [0.1, 0.3, 0.5, 0.5]})
    iterations = pd.DataFrame(
        {"forward_s": [1.0, 2.0, 3.0], "optimizer_s": 0.5, "other_s": 0.25, "skew_s": [0.0, 0.0, 3.0]}
    )
    cases = ((1, False), (8, False), (8, True))
    samples = pd.concat(
        [
            pd.DataFrame({"entries": SIZES, "buckets": n, "overlapped": b, "phase": "step", "share": 1.0})
            for n, b in cases
        ]
    )
    n, entries = samples["buckets"], samples["entries"]
    samples["sparsify_s"], samples["communication_s"] = n * 1e-9 * entries, 0.5 + n * (1.0 + 1e-9 * entries)
    samples["communication_s"] += 8 * 0.25 * samples["overlapped"]
    samples["taken_s"] = 8 * 0.125 * samples["overlapped"]
    calibrated = calibration(layers, iterations, samples.assign(**SENT))
    found = calibrated.costs
    assert calibrated.sizes == [10, 99] and calibrated.rest_s == 0.75
    assert found.forward_s == 2 and found.backward_s == pytest.approx([0.2 * 1.7 / 0.7, 0.5 * 1.7 / 0.7])
    assert found.communicate(0) == pytest.approx(1.0, rel=1e-3)
    assert found.latency(99) == pytest.approx(0.5, rel=1e-3) and found.contention_s == pytest.approx(0.25)
    assert found.interference(99) == pytest.approx(0.125)
    assert exact([10, 99], found) == [(0, 2)]


def test_the_dearest_phase_counts_for_every_step_if_asked_for():
    samples = pd.DataFrame({"entries": [1, 1000], "buckets": 1, "overlapped": False, "communication_s": 1e-3, **SENT})
    refresh, reuse = (
        samples.assign(phase=p, share=s, sparsify_s=t) for p, s, t in (("a", 0.25, 8.0), ("b", 0.75, 4.0))
    )
    layers = pd.DataFrame({"layer": [0], "entries": [1000], "backward_s": [0.1]})
    iterations = pd.DataFrame({"forward_s": [1.0], "optimizer_s": 0.0, "other_s": 0.0, "skew_s": 0.0})
    for cost, expected in (("amortised", 5.0), ("worst", 8.0)):
        calibrated = calibration(layers, iterations, pd.concat([refresh, reuse]), cost=cost)
        assert calibrated.costs.sparsify(1000) == pytest.approx(expected)
