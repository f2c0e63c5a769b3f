"""Intervals of repeats, and when a timing run has measured enough."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import CPU
from test_server import Images

from dlgs_bench.comm.local import run_workers
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.stats import (
    LEAST_BLOCKS,
    Estimate,
    amortised,
    amortised_by,
    mean_of_seeds,
    pooled,
    quantile_of_t,
    relaunched,
    repeatable,
    unpaired,
)
from dlgs_bench.training.clock import PARTS
from dlgs_bench.training.rows import joined, over_workers
from dlgs_bench.training.timed import timing, widest

pytestmark = pytest.mark.unit

seconds = st.lists(st.floats(1e-4, 1e3), min_size=LEAST_BLOCKS, max_size=12)


@given(seconds, st.floats(0.01, 100))
def test_an_interval_holds_its_median_and_scales_with_its_values(values, factor):
    found, scaled = repeatable(values), repeatable([v * factor for v in values])
    assert found.low <= found.value * (1 + 1e-9) and found.value <= found.high * (1 + 1e-9)
    assert found.value == pytest.approx(np.exp(np.median(np.log(values))))
    assert (scaled.low, scaled.high) == pytest.approx((found.low * factor, found.high * factor))


def test_what_never_varies_has_no_width_and_two_blocks_have_no_interval():
    assert repeatable([0.3] * 4).width == pytest.approx(0)
    few, many = repeatable([0.3, 0.4]), Estimate(1.0, 0.9, 1.1)
    for found in (few, unpaired(few, many), unpaired(many, few)):
        assert not found.enough and found.width == math.inf and math.isnan(found.low) and math.isnan(found.high)


def test_the_interval_of_three_blocks_by_hand():
    """The deviation of 0, ln 2 and 2 ln 2 is ln 2; Student's t is 0.95 / sqrt(2 * 0.975 * 0.025) for two degrees."""
    margin = 0.95 / math.sqrt(2 * 0.975 * 0.025) * math.sqrt(2) * math.log(2) * math.sqrt(math.pi / (4 + math.pi))
    found = repeatable([1, 2, 4])
    assert (found.low, found.value, found.high) == pytest.approx((2 / math.exp(margin), 2, 2 * math.exp(margin)), 1e-3)


@pytest.mark.parametrize("freedom, quantile", [(1, 12.7062), (2, 4.3027), (2.5, 3.572), (5, 2.5706), (30, 2.0423)])
def test_students_t_has_the_quantiles_of_the_tables(freedom, quantile):
    """The values come from tables; the value for 2.5 comes from 20 million draws."""
    assert quantile_of_t(freedom) == pytest.approx(quantile, rel=1e-3)


LOGS = {
    "log-normal": lambda numbers, shape: 0.1 * numbers.standard_normal(shape),
    "1 + exponential": lambda numbers, shape: np.log(1 + numbers.exponential(1, shape)),
    "outliers": lambda numbers, shape: 0.03 * numbers.standard_normal(shape) + 0.5 * (numbers.random(shape) < 0.1),
}


@pytest.mark.parametrize("blocks", [3, 4, 6, 10, 15])
@pytest.mark.parametrize("kind", LOGS)
def test_95_of_100_repeats_lie_in_the_interval_of_the_blocks_of_one_launch(blocks, kind):
    ones, others = np.exp(LOGS[kind](np.random.default_rng(1), (2, 1500, blocks)))
    found = [repeatable(one) for one in ones]
    medians = np.exp(np.median(np.log(others), axis=1))
    inside = np.mean([one.low <= median <= one.high for one, median in zip(found, medians, strict=True)])
    assert 0.92 <= inside <= 0.99


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_mean_over_many_seeds_lies_in_the_interval_of_a_few_in_95_of_100_cases(seeds):
    """It is narrower than the interval of a repeat, and two seeds have none."""
    logs = 0.3 + 0.1 * np.random.default_rng(4).standard_normal((2000, seeds))
    found = [mean_of_seeds(one) for one in np.exp(logs)]
    inside = np.mean([one.low <= math.exp(0.3) <= one.high for one in found])
    assert 0.94 <= inside <= 0.96
    assert (
        found[0].value == pytest.approx(math.exp(logs[0].mean())) and found[0].width < repeatable(np.exp(logs[0])).width
    )
    assert not mean_of_seeds([1.0, 1.1]).enough


@pytest.mark.parametrize(
    "runs, launches", [(6, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((3, 3), (12, 2)))]
)
def test_a_repeat_of_few_launches_lies_in_the_interval_that_runs_like_it_give(runs, launches):
    """The runs have times of their own, and differ between launches alike."""
    numbers = np.random.default_rng(2)
    inside = 0
    for _ in range(400):
        times = np.exp(numbers.standard_normal((runs, 1)))
        measured, again = times * np.exp(0.1 * numbers.standard_normal((2, runs, launches)))
        found = relaunched(measured[0], pooled([[launches] for launches in measured]))
        inside += found.low <= np.exp(np.log(again[0]).mean()) <= found.high
    assert 0.92 * 400 <= inside <= 0.98 * 400


@pytest.mark.parametrize("correlation", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("schemes, launches", [(2, 3), (6, 3), (8, 4)])
def test_95_of_100_repeats_lie_in_the_interval_whatever_schemes_of_a_launch_have_in_common(
    schemes, launches, correlation
):
    numbers = np.random.default_rng(3)
    common, own = 0.1 * correlation**0.5, 0.1 * (1 - correlation) ** 0.5
    inside = 0
    for _ in range(1000):
        dense = common * numbers.standard_normal((2, 1, launches))
        measured, again = np.exp(dense + own * numbers.standard_normal((2, schemes, launches)))
        found = relaunched(measured[0], pooled([measured]))
        inside += found.low <= np.exp(np.log(again[0]).mean()) <= found.high
    assert inside >= 0.93 * 1000  # 95 of 100; with an assumed correlation of 0.5, 91
    assert correlation < 0.9 or inside <= 0.985 * 1000


@pytest.mark.parametrize("schemes", [7, 20])
def test_95_of_100_repeats_lie_in_the_interval_if_a_run_has_more_schemes_than_another(schemes):
    """As with a user's method, which is timed in a run of its own."""
    numbers = np.random.default_rng(4)
    inside, correlation, launches = 0, 0.9, 3
    for _ in range(2000):
        runs = []
        for number in (schemes, 1):
            dense = 0.1 * correlation**0.5 * numbers.standard_normal((2, 1, launches))
            runs.append(np.exp(dense + 0.1 * (1 - correlation) ** 0.5 * numbers.standard_normal((2, number, launches))))
        found = relaunched(runs[0][0][0], pooled([measured for measured, _ in runs]))
        inside += found.low <= np.exp(np.log(runs[0][1][0]).mean()) <= found.high
    assert inside >= 0.945 * 2000  # as if each run added its degrees of freedom: 0.93


def test_the_degrees_of_freedom_of_six_schemes_of_three_launches_by_hand():
    """Six schemes have 12 squares, whose variance is 1 + 5 * 0.8^2 times as large as if they were independent."""
    spread = pooled([[[1.0, 2.0, 4.0]] * 6])
    assert spread.freedom == pytest.approx(12 / (1 + 5 * 0.64)) and spread.deviation == pytest.approx(math.log(2))


def test_two_launches_of_schemes_in_common_have_no_interval():
    assert not relaunched([1.0, 1.1], pooled([[[1.0, 1.1]] * 8])).enough
    assert relaunched([1.0, 1.1], pooled([[[1.0, 1.1]]] * 8)).enough  # launches of their own


cells = st.tuples(st.sampled_from([1.0, 2.0, math.nan]), st.integers(1, 3), st.integers(0, 2), st.floats(1e-3, 1e3))


@given(st.lists(cells, min_size=1, max_size=60))
def test_all_groups_are_amortised_as_each_alone(rows):
    """A row without a launch number counts as a separate launch, after the others."""
    rows = sorted(rows, key=lambda row: row[2])  # as they are timed: phase after phase
    launches, blocks, phases, values = map(np.array, zip(*rows, strict=True))
    shares = np.array([0.1, 0.2, 0.7])[phases]
    groups: dict[tuple, list] = {}
    for launch, block, *iteration in zip(launches, blocks, values, phases, shares, strict=True):
        groups.setdefault((math.inf if math.isnan(launch) else launch, block), []).append(iteration)
    firsts, found = amortised_by([launches, blocks], values, phases, shares)
    assert [(math.inf if math.isnan(launches[i]) else launches[i], blocks[i]) for i in firsts] == sorted(groups)
    assert found.tolist() == pytest.approx([amortised(groups[key]) for key in sorted(groups)], rel=1e-12)


def iterations(own: list[float], dense: list[float]) -> list[dict]:
    rows = []
    for block, (mine, theirs) in enumerate(zip(own, dense, strict=True)):
        metadata = {"block": block, "share": 1.0, "phase": "step"}
        rows += [{"variant": "none", "iteration_s": theirs} | metadata] * 2
        rows += [{"variant": "x", "iteration_s": mine} | metadata]
    return rows


def test_a_drift_of_the_whole_machine_widens_no_interval():
    drift = [1.0, 1.5, 0.7, 1.2]
    assert widest(iterations(drift, [2 * d for d in drift])) == pytest.approx(0)
    assert widest(iterations([1.0] * 4, [2 * d for d in drift])) > 0.3


def test_repeats_of_a_phase_count_as_often_as_the_phase_comes():
    """One refresh and three reuses were measured, but cycles have 32 steps. So a refresh counts 1/32, not 1/4."""
    dense = {"variant": "none", "share": 1.0, "phase": "step", "iteration_s": 1.0}
    refresh = {"variant": "x", "share": 1 / 32, "phase": "refresh"}
    reuse = {"variant": "x", "share": 31 / 32, "phase": "reuse", "iteration_s": 1.0}
    rows = []
    for block, slow in enumerate((1.0, 2.0, 3.0)):
        rows += [r | {"block": block} for r in (dense, refresh | {"iteration_s": slow}, reuse, reuse, reuse)]
    assert widest(rows) == pytest.approx(repeatable([1 / (slow / 32 + 31 / 32) for slow in (1.0, 2.0, 3.0)]).width)


@pytest.mark.parametrize(
    "measurement, blocks, launch_budget_s",
    [
        (Measurement(blocks=2, repeats=1), 2, 0.0),  # no budget: no more than asked for
        (Measurement(blocks=3, repeats=1, width=1e6), 3, 1e6),  # known well enough
        (Measurement(blocks=2, repeats=1), 2, 1e-6),  # the budget is spent
    ],
)
def test_a_timing_run_ends_when_it_knows_enough_or_its_budget_is_spent(measurement, blocks, launch_budget_s):
    assert {row["block"] for row in timed(measurement, launch_budget_s)} == set(range(1, blocks + 1))


def test_a_timing_run_goes_on_while_it_knows_too_little(monkeypatch):
    monkeypatch.setattr(
        "dlgs_bench.training.timed.widest", lambda rows, uncompressed: 1.0 if rows[-1]["block"] < 4 else 0.1
    )
    rows = timed(Measurement(blocks=2, repeats=1, width=0.1), 1e6)
    assert {row["block"] for row in rows} == {1, 2, 3, 4}


def timed(measurement: Measurement, launch_budget_s: float) -> list[dict]:
    """The iterations of a timing run of two workers."""
    scheme = Scheme("topk", options={"ratio": 0.1})
    spec = RunSpec("timing", Training("resnet20", batch=2), scheme, Cluster(workers=2), measurement)
    place = LaunchSettings(launch_budget_s=launch_budget_s)
    found = run_workers(2, lambda comm: timing(spec, comm, Images(), CPU, lambda done, total: None, place))
    return found[0]["iterations"]


@given(st.lists(seconds, min_size=1, max_size=6))
def test_runs_that_were_launched_once_say_nothing_and_the_spread_is_that_of_deviations(runs):
    assert pooled([values[:1]] for values in runs) is None
    spread = pooled([values] for values in runs)
    deviations = np.concatenate([np.log(values) - np.log(values).mean() for values in runs])
    assert spread.freedom == sum(map(len, runs)) - len(runs)
    assert spread.deviation == pytest.approx(np.sqrt((deviations**2).sum() / spread.freedom))
    found = relaunched(runs[0], spread)
    assert found.low <= found.value <= found.high and found.enough == (spread.freedom >= 2)


@given(st.integers(1, 4), st.integers(0, 2**16))
def test_parts_are_means_over_the_workers_and_still_add_up(workers, seed):
    numbers = np.random.default_rng(seed)
    parts = numbers.uniform(0.1, 1, (workers + 1, 3, len(PARTS)))  # the last rank is a server

    def rows_of(rank: int) -> list[dict]:
        rows = [dict(zip((f"{p}_s" for p in PARTS), row, strict=True)) | {"step": 7} for row in parts[rank].tolist()]
        sent = {"sent_bytes": 100 * rank, "received_bytes": 7, "density": rank / 10}
        return [row | sent | {"iteration_s": sum(row[f"{p}_s"] for p in PARTS)} for row in rows]

    found = run_workers(workers + 1, lambda comm: over_workers(rows_of(comm.rank), comm, workers))
    assert all(rows == found[0] for rows in found)
    for number, row in enumerate(found[0]):
        mine = [rows_of(rank)[number] for rank in range(workers)]
        for part in ("forward_s", "sparsify_s", "iteration_s", "sent_bytes", "received_bytes", "density"):
            assert row[part] == pytest.approx(np.mean([r[part] for r in mine]))
        communication = row["communication_s"] + row["waiting_s"]
        assert communication == pytest.approx(np.mean([r["communication_s"] for r in mine])) and row["step"] == 7
        assert row["communication_s"] >= 0 and row["waiting_s"] >= 0
    if workers == 1:
        assert all(row["waiting_s"] == 0 for row in found[0])


def test_the_faster_worker_waits_for_the_slower_one():
    def work(comm):
        computing = (0.1, 0.4)[comm.rank]
        parts = dict.fromkeys((f"{p}_s" for p in PARTS), 0.0) | {"backward_s": computing}
        parts |= {"sent_bytes": 8, "received_bytes": 8, "density": 1.0}
        return over_workers([parts | {"communication_s": 0.5 - computing, "iteration_s": 0.5}], comm, 2)

    (row,) = run_workers(2, work)[0]
    assert row["waiting_s"] == pytest.approx(0.15)  # 0.3 s of the first worker, none of the second
    assert row["communication_s"] == pytest.approx(0.1)


def test_a_communication_ends_with_the_last_worker_and_a_server_does_not_count():
    seconds = [[0.1, 0.5], [0.4, 0.2], [0.9, 0.9]]  # of both rows, for each process; the last is a server

    def work(comm):
        rows = [{"entries": n, "communication_s": s, "taken_s": s} for n, s in enumerate(seconds[comm.rank])]
        return joined(rows, {"communication_s": torch.amax, "taken_s": torch.mean}, comm, 2)

    expected = [
        {"entries": 0, "communication_s": 0.4, "taken_s": pytest.approx(0.25)},
        {"entries": 1, "communication_s": 0.5, "taken_s": pytest.approx(0.35)},
    ]
    assert run_workers(3, work) == [expected] * 3
