"""Accuracy against time: steps of curves times iterations of Table 2, measured and over slower links."""

import math
import runpy

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from test_claims import timing_run
from test_findings import whole

from dlgs_bench.paper import accuracy_time
from dlgs_bench.paper.accuracy_time import comparable_points, iterations, lines, slower_s

pytestmark = pytest.mark.unit

KEPT = ROOT / "results" / "reference-long-training"
TARGETS = runpy.run_path(str(ROOT / "workflow" / "studies" / "accuracy_time" / "table.py"))["TARGETS"]
SECONDS = {"none": 4.0, "topk": 2.0, "dlgs": 1.0}


def times(points: pd.DataFrame, every: pd.DataFrame) -> pd.DataFrame:
    return accuracy_time.times(points, every, TARGETS)


def timing(**metadata) -> pd.DataFrame:
    runs = pd.concat([timing_run(method, seconds) for method, seconds in SECONDS.items()])
    return whole(runs, **metadata).assign(network="testbed", data="cifar10")


def points(precision="float32", **curves: list[float]) -> pd.DataFrame:
    """A point of each curve every 10 steps. The last part of a method's name is unique."""
    rows = [
        {"run": variant, "model": "vgg16", "variant": variant, "step": 10 * (place + 1), "test_accuracy": accuracy,
         "ratio": math.nan if variant == "none" else 0.01, "refresh_every": 32.0 if variant == "dlgs" else math.nan,
         "precision": precision, "topology": "allgather", "workers": 2, "seed": 0, "sent_bytes": 1.0, "data": "cifar10"}
        for variant, curve in curves.items() for place, accuracy in enumerate(curve)
    ]  # fmt: skip
    return pd.DataFrame(rows)


CURVES = {"none": [0.2, 0.7], "topk": [0.1, 0.65], "dlgs": [0.1, 0.62], "dlgs-s8": [0.9, 0.9]}


def row(table: pd.DataFrame, variant: str, target: float, how: str = "measured") -> dict:
    chosen = (table["variant"] == variant) & (table["target"] == target) & (table["how"] == how)
    return table[chosen].iloc[0].to_dict()


def test_the_time_of_a_method_is_its_steps_times_its_iteration():
    table = times(points(**CURVES), iterations(timing()))
    topk = row(table, "topk", 0.6)
    steps, dense_steps = 10 + 10 * 0.5 / 0.55, 10 + 10 * 0.4 / 0.5
    assert (topk["steps"], topk["dense_steps"]) == pytest.approx((steps, dense_steps))
    assert topk["seconds"] == pytest.approx(2 * steps, rel=1e-3)
    assert topk["relative"] == pytest.approx(steps / dense_steps / 2, rel=1e-2)
    assert topk["relative_low"] < topk["relative"] < topk["relative_high"]


def test_an_accuracy_that_is_never_reached_is_infinitely_late():
    table = times(points(**CURVES), iterations(timing()))
    assert math.isinf(row(table, "dlgs", 0.65)["relative"]) and row(table, "dlgs", 0.6)["relative"] < 1
    low = times(points(**CURVES | {"none": [0.1, 0.2]}), iterations(timing()))
    assert low["relative"].isna().all()


def test_only_seeds_that_both_have_count():
    lucky = points(**CURVES).query("variant == 'none'").assign(seed=1, run="none-1", test_accuracy=0.9)
    both = times(pd.concat([points(**CURVES), lucky]), iterations(timing()))
    pd.testing.assert_frame_equal(both, times(points(**CURVES), iterations(timing())))


def test_links_count_with_the_rate_that_they_had_when_iterations_were_measured():
    """Links in proportion follow the machine: a slowdown of 0.5 means twice the rate."""
    measured, followed = (timing().assign(rate_mbit=rate, slowdown=rate / 200) for rate in (200.0, 100.0))
    pd.testing.assert_frame_equal(iterations(followed), iterations(measured))


def test_methods_that_were_not_timed_and_curves_in_another_precision_are_left_out():
    table = times(points(**CURVES), iterations(timing()))
    assert set(table["variant"]) == {"topk", "dlgs"}
    mixed = pd.concat([points(none=[0.9, 0.9], precision="bfloat16"), points(**CURVES)])
    assert row(times(mixed, iterations(timing())), "topk", 0.6)["dense_steps"] == pytest.approx(18)


def test_a_run_that_two_kept_tables_hold_counts_once():
    both = points(**CURVES), points(none=CURVES["none"]), points(none=CURVES["none"], precision="bfloat16")
    assert len(comparable_points(both)) == len(both[0]) + len(both[2])


def test_other_workers_topologies_and_networks_do_not_count():
    others = [timing(workers=3), timing().assign(topology="ps-weights"), timing().assign(network="loopback")]
    more = pd.concat([timing(), *(one.assign(iteration_s=9.0, run=one["run"] + "x") for one in others)])
    pd.testing.assert_frame_equal(iterations(more), iterations(timing()))
    with pytest.raises(ValueError, match=r"vgg16-none-0\.01-allgatherx is timed twice over all-gather with 2 workers"):
        iterations(pd.concat([timing(), timing().assign(run=timing()["run"] + "x")]))
    elsewhere = points(**CURVES).assign(workers=4)
    assert len(comparable_points([points(**CURVES), elsewhere])) == len(points(**CURVES))


PARTS = ("forward_s", "backward_s", "communication_s", "optimizer_s", "other_s")


@given(st.tuples(*[st.floats(0, 2)] * len(PARTS)), st.floats(1e3, 1e9), st.floats(1, 10), st.floats(1, 10))
def test_slower_links_make_an_iteration_longer_by_at_most_what_the_bytes_take_longer(parts, sent, one, other):
    fields = dict(zip(PARTS, parts, strict=True)) | {"iteration_s": sum(parts), "sent_bytes": sent, "links_mbit": 100.0}
    link_s = sent * 8e-6 / 100
    slow, slower = sorted((one, other))
    (least, most), (later_least, later_most) = slower_s(fields, slow), slower_s(fields, slower)
    assert sum(parts) <= least * (1 + 1e-12) and least <= most <= sum(parts) + (slow - 1) * link_s * (1 + 1e-9) + 1e-9
    assert least <= later_least * (1 + 1e-12) and most <= later_most * (1 + 1e-12)
    assert slower_s(fields, 1.0) == pytest.approx((sum(parts), sum(parts)))


def test_a_worker_that_waits_for_all_bytes_waits_for_all_of_them_over_slower_links():
    fields = dict.fromkeys(PARTS, 1.0) | {"iteration_s": 5.0, "sent_bytes": 12.5e6, "links_mbit": 100.0}  # 1 s
    assert slower_s(fields, 3.0) == (7.0, 7.0)
    hidden = fields | {"communication_s": 0.5, "iteration_s": 4.5}
    assert slower_s(hidden, 3.0) == (6.0, 6.5)  # forward, 3 s of the link, optimizer and other


def test_curves_have_a_panel_for_each_ratio_and_rate_with_uncompressed_in_each():
    drawn = lines(points(**CURVES), iterations(timing()))
    assert set(drawn["gbit"]) == {50, 25, 10} and set(drawn["ratio"]) == {0.01}
    for _, panel in drawn.groupby("gbit"):
        assert panel["variant"].value_counts().to_dict() == {"none": 2, "topk": 2, "dlgs": 2}
        assert (panel["hours_low"] <= panel["hours"]).all() and (panel["hours"] <= panel["hours_high"]).all()
    assert lines(points(**CURVES).assign(data="imagenet"), iterations(timing())).empty


def test_a_method_without_a_ratio_is_in_the_panels_of_all_ratios():
    runs = timing()
    cast = runs[runs["variant"] == "topk"].assign(variant="cast", ratio=math.nan, run="cast")
    cast["timed"] = cast["timed"].replace("topk", "cast")
    curves = points(**CURVES)
    tenth = curves[curves["variant"] == "topk"].assign(ratio=0.1, run="topk-0.1")
    half = curves[curves["variant"] == "none"].assign(variant="cast", run="cast")
    timed = pd.concat([runs, cast, runs[runs["variant"] == "topk"].assign(ratio=0.1, run="topk-0.1")])
    drawn = lines(pd.concat([curves, tenth, half]), iterations(timed))
    for _, panel in drawn.groupby(["gbit", "ratio"]):
        assert {"none", "cast", "topk"} <= set(panel["variant"])
    assert set(drawn["ratio"]) == {0.01, 0.1}


def test_the_kept_table_is_made_of_the_kept_runs():
    """After Table 2 was measured again, this fails until `snakemake accuracy_time` has run."""
    accuracy = comparable_points(map(pd.read_csv, sorted(KEPT.glob("**/accuracy.csv"))))
    (table2,) = (ROOT / "results" / "reference").glob("timing.csv*")
    keys = ["model", "variant", "ratio", "target", "gbit"]
    made = times(accuracy, iterations(pd.read_csv(table2))).set_index(keys).sort_index()
    there = pd.read_csv(KEPT / "accuracy-time.csv").set_index(keys).sort_index()
    pd.testing.assert_frame_equal(there, made, rtol=1e-4, check_dtype=False, check_like=True)


def test_predictions_for_slower_links_are_near_what_was_measured_there():
    """The kept study of link rates goes from 800 Mb/s to 270 and 90. The median error is bounded."""
    rates = pd.read_csv(ROOT / "results" / "reference-studies" / "rates_timing.csv")
    errors = accuracy_time.errors(rates)
    assert len(errors) >= 14 and errors.abs().median() < 0.15
