"""Advice: ranked predictions, how far they may be off, and the words for people."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import LAYERS, TOPOLOGIES, VARIANTS, describe
from test_report import Items, Report

from dlgs_bench import plugins
from dlgs_bench.timemodel import advice, iterations
from dlgs_bench.timemodel.checked_range import SPEEDUP_FACTOR
from dlgs_bench.timemodel.cost_curve import Curve
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.predict import Calibrations
from dlgs_bench.timemodel.timeline import Costs, schedule

pytestmark = pytest.mark.unit

THERE = {"workers": 8, "rate_mbit": 1000.0, "latency_ms": 0.1}
KEYS = ("model", "variant", "topology", "collective")
SCRIPTS = "studies/advise/{}.py".format


MODELS = {"one model": ("resnet20",), "two models": ("resnet20", "resnet50")}


@pytest.fixture(scope="module", params=["one model", pytest.param("two models", marks=pytest.mark.slow)])
def report(request, tmp_path_factory):
    stderr = sys.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "describe", describe)
        made = Report(tmp_path_factory.mktemp("advice"), MODELS[request.param])
        made.runs.calibrate()
        made.runs.time()
        made.folders = [
            path.parent for kind in ("layers", "exchanges") for path in (made.runs.root / kind).glob("*/run.json")
        ]
        made.checked = made.folder / "checked.csv"
        off = np.linspace(1.0, 1.3, 30)
        pd.DataFrame({"predicted_speedup": off, "speedup": 1.0, "machine": "a machine"}).to_csv(
            made.checked, index=False
        )
        made.projections = Calibrations(made.folders).each()
        yield made
    sys.stderr = stderr


@pytest.fixture(autouse=True)
def _complaints(monkeypatch):
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # scripts send theirs to a log


@given(st.lists(st.floats(0.2, 5), min_size=9, max_size=60), st.randoms())
def test_nine_of_ten_cases_lie_within_the_margin(off, random):
    """The theorem counts the cases and one more of the same kind."""
    checked = pd.DataFrame({"predicted_speedup": off, "speedup": 1.0})
    factor = advice.margin(checked)
    assert (advice.errors(checked) <= factor * (1 + 1e-12)).mean() >= 0.9
    shuffled = checked.sample(frac=1, random_state=random.randint(0, 99))
    assert advice.margin(shuffled) == factor
    swapped = checked.rename(columns={"predicted_speedup": "speedup", "speedup": "predicted_speedup"})
    assert advice.margin(swapped) == pytest.approx(factor)  # too fast is as wrong as too slow


def test_too_few_cases_promise_nothing():
    assert advice.margin(pd.DataFrame({"predicted_speedup": [1.0] * 8, "speedup": 1.0})) == np.inf


@pytest.mark.parametrize(("off", "factor"), [(2.0, 2.0), (1.1, SPEEDUP_FACTOR)])
def test_the_interval_is_the_margin_of_the_check_but_has_a_least_width(off, factor):
    checked = pd.DataFrame({"predicted_speedup": [off] * 50, "speedup": 1.0})
    assert advice.interval(checked) == pytest.approx(factor)


def test_ranks_are_against_uncompressed_of_the_same_model_and_topology():
    rows = [("a", "none", 1.0), ("a", "topk", 0.5), ("b", "none", 2.0), ("b", "topk", 4.0)]
    table = pd.DataFrame(rows, columns=["model", "variant", "iteration_s"]).assign(topology="allgather")
    found = advice.ranked(advice.compared(table), 1.2).set_index(["model", "variant"])
    assert found["speedup"].to_dict() == {
        ("a", "topk"): 2.0,
        ("a", "none"): 1.0,
        ("b", "none"): 1.0,
        ("b", "topk"): 0.5,
    }
    assert found.loc[("a", "topk"), ["speedup_low", "speedup_high"]].tolist() == pytest.approx([2 / 1.2, 2.4])
    bounds = ["speedup_low", "speedup_high"]
    assert iterations.verdict(*found.loc[("a", "topk"), bounds]) == "pays"
    assert iterations.verdict(*found.loc[("b", "topk"), bounds]) == "does not pay"
    assert iterations.verdict(*advice.ranked(advice.compared(table), 3.0)[bounds].iloc[0]) == "cannot be told"
    twice = pd.concat([table, table[table["variant"] == "none"].assign(iteration_s=0.8)])
    assert advice.ranked(advice.compared(twice), 1.2).query("model == 'a'")["speedup"].tolist() == pytest.approx(
        [1.6, 1.0, 0.8]
    )
    with pytest.raises(ValueError, match="missing for b"):
        advice.ranked(advice.compared(table.drop(2)), 1.2)


def test_nothing_saved_takes_longer_and_free_links_save_nothing_more(report):
    free = Network(8, np.inf, 0.0)
    for projection in report.projections:
        for there in (Network(8, 100.0, 1.0), free):
            saved = projection.saved(there)
            assert min(saved.values()) >= -1e-12 and max(saved.values()) < projection.iteration_s(there)
        assert projection.saved(free)["link"] == 0
        assert 0 < projection.computing_s < projection.iteration_s(free)
        assert projection.saved(Network(8, 1.0))["link"] > projection.saved(Network(8, 100.0))["link"]
        assert projection.spec.scheme.method != "none" or projection.saved(free)["selection"] == 0


def test_dense_sums_may_go_another_way_where_that_makes_other_rounds(report):
    for projection in report.projections:
        dense = projection.spec.topology.name == "allgather" and projection.spec.scheme.method == "none"
        ways = projection.collective_variants(8)
        assert [way.collective for way in ways] == (["engine", "halving-doubling"] if dense else ["engine"])
        # 6 is not a power of two, and among 2 workers both make the same number of rounds.
        assert len(projection.collective_variants(6)) == len(projection.collective_variants(2)) == 1
        if dense:
            near, far = Network(8, np.inf, 0.0), Network(8, np.inf, 1000.0)
            ring, other = ([way.iteration_s(there) for there in (near, far)] for way in ways)
            # Each bucket of the ring waits 14 times for 2 s, of halving-doubling 6 times, however many buckets.
            assert (ring[1] - ring[0]) / (other[1] - other[0]) == pytest.approx(14 / 6, rel=0.01)
            assert iterations.fastest_s(projection, far) == other[1] < ring[1]


@given(st.floats(1, 1e3), st.integers(2, 64), st.floats(1, 1e5), st.floats(0, 10))
@settings(max_examples=25, deadline=None)
def test_nodes_that_do_everything_so_many_times_as_fast_gain_as_much(report, slowdown, workers, rate, latency):
    """All times shrink by the same slowdown factor, so speed-ups stay."""
    projection = next(one for one in report.projections if one.spec.variant == "dlgs")
    here = iterations.predicted(projection, Network(workers, rate, latency))
    there = iterations.predicted(projection, Network(workers, rate * slowdown, latency / slowdown), slowdown)
    assert there["iteration_s"] * slowdown == pytest.approx(here["iteration_s"])
    assert there["limit"] == here["limit"]
    assert there["limit_s"] * slowdown == pytest.approx(here["limit_s"], nan_ok=True)


@pytest.mark.parametrize(("link_s", "limit"), [(0.06, ("link", 0.03)), (0.04, ("computing", math.nan))])
def test_a_part_limits_nodes_that_are_twice_as_fast_if_it_takes_a_twentieth_of_their_iteration(link_s, limit):
    model = SimpleNamespace(iteration_s=lambda there: 1.0, saved=lambda there: {"selection": 0.01, "link": link_s})
    row = iterations.predicted(model, Network(2, 100.0), node_speed=2.0)
    assert (row["limit"], row["limit_s"]) == pytest.approx(limit, nan_ok=True) and row["iteration_s"] == 0.5


@pytest.mark.parametrize(
    ("part", "saved_s"),
    [
        ({}, 0),
        ({"latency": Curve((10.0,), (5.0,))}, 5),  # after the last bucket
        ({"contention_s": 1.0}, 1),  # of the first bucket; the second one starts when computing has ended
        ({"interference": Curve((10.0,), (2.0,))}, 1),  # of 2 s, 1 s is hidden behind the first bucket
    ],
    ids=["nothing", "latency", "contention", "interference"],
)
def test_messages_save_their_latency_the_wait_for_a_core_and_the_delay_of_computing(part, saved_s):
    """Two buckets come at 3 and 6, and each takes 4 s. A bucket without entries takes nothing."""
    nothing = Curve((1.0,), (0.0,))
    costs = Costs(1.0, [2.0, 3.0], nothing, Curve((1.0, 10.0), (0.0, 4.0)), nothing, interference=nothing)
    costs = replace(costs, **part)
    saved = iterations.saved(
        costs, costs, replace(costs, communicate=nothing),
        lambda other: schedule([10, 10], other, [(0, 1), (1, 2)]).iteration_s,
    )  # fmt: skip
    assert saved == {"selection": 0, "link": 0, "messages": saved_s, "handling": 0}


def inputs(report, rates=()) -> dict:
    calibration = [str(folder / "run.json") for folder in report.folders]
    return {"calibration": calibration, "rates": list(rates), "checked": str(report.checked)}


@pytest.mark.parametrize(
    ("network", "reason"),
    [((16, 25_000.0, 0.05), "16 workers, where 2 to 4 were checked"), ((2, 100.0, 0.0), "nodes 500 times as fast")],
    ids=["fast links", "slow links"],
)
def test_computing_faster_than_a_gpu_starts_is_doubtful_and_its_interval_wider(
    report, capfd, tmp_path, network, reason
):
    """A small model is assumed to use nodes as well as a large one. It would compute in less than a millisecond.

    Over slow links, an iteration takes as long as the iterations that were checked.
    """
    rates = []
    for model in report.runs.models:
        for workers, slowdown in ((2, 500.0), (3, 1.0)):  # the calibrations are of 2 workers
            rates.append(str(tmp_path / f"{model}-{workers}workers.json"))
            metadata = {"model": model, "slowdown": slowdown, "nodes": {"multiply_adds_s": 1.6e12}}
            metadata |= {"batch": 8, "nodes_batch": 64 if model == report.runs.models[0] else 8}
            Path(rates[-1]).write_text(json.dumps(metadata))
    there = dict(zip(THERE, network, strict=True))
    table, text = report.table(SCRIPTS("table"), "doubtful", {"there": there}, **inputs(report, rates))
    answers = [line for line in text.splitlines() if " is predicted to be " in line]
    assert len(answers) == 2 * len(report.runs.models) and table["computing_s"].max() < 0.005
    assert (table["iteration_s"].max() > 0.07) == (network == (2, 100.0, 0.0))
    for line in answers:
        assert "Warning: " in line and reason in line and "is doubtful" in line and "computation_ms" in line
    other = table["outside"].str.contains("calibrated at batch 8 for nodes with batch 64, .* 8 times too slow")
    assert other.equals(table["model"] == report.runs.models[0])
    compressed, factor = table[table["variant"] != "none"], advice.interval(pd.read_csv(report.checked)) ** 2
    assert (compressed["speedup"] / compressed["speedup_low"]).to_numpy() == pytest.approx(factor, rel=1e-3)


def test_the_advice_ranks_every_variant_and_says_the_answer(report, capfd):
    table, text = report.table(SCRIPTS("table"), "advice", {"there": THERE}, **inputs(report))
    assert set(table["variant"]) == set(VARIANTS) and len(table) == len(report.runs.models) * (2 * 14 + 1)
    assert set(table["collective"][table["variant"] == "none"]) == {"engine", "halving-doubling"}
    assert set(table["collective"][table["variant"] != "none"]) == {"engine"}
    for _, rows in table.groupby(["model", "topology"]):
        assert rows["iteration_s"].is_monotonic_increasing
    for title in report.runs.titles["models"].values():
        assert f"for {title} on 8 workers with links of 1000 Mb/s (all-gather)" in text
    assert "9 of 10" in text and "We assume that the nodes compute as fast as this machine." in text
    assert text.splitlines()[0] in capfd.readouterr().err
    assert {"selection", "link", "messages", "handling", "computing"} >= set(table["limit"])
    # 2 to 4 workers were checked, so the interval is wider.
    assert "Warning" in text and "8 workers, where 2 to 4 were checked" in text
    compressed = table[table["variant"] != "none"]
    factor = advice.interval(pd.read_csv(report.checked)) ** 2
    assert (compressed["speedup_high"] / compressed["speedup"]).to_numpy() == pytest.approx(factor, rel=1e-3)
    assert "computation_ms" not in text and table["computing_s"].min() > 0.005


def test_a_projection_computes_and_exchanges_as_it_was_calibrated(report):
    """The calibrated backward has 1 ms and 10 ns per entry for each layer, and its workers wait for 1 ms.

    A sum of n entries takes 64 ns per entry and 0.2 ms on the link, and 1 ms after it.
    """
    for projection in report.projections:
        model, topology = projection.spec.training.model, projection.spec.topology.name
        iterations = pd.read_csv(report.runs.root / "layers" / model / "iterations.csv")
        computing_s = iterations["forward_s"].median() + sum(1e-3 + 1e-8 * entries for entries in LAYERS)
        rest_s = (iterations["optimizer_s"] + iterations["other_s"]).median()
        assert projection.computing_s == pytest.approx(computing_s)
        assert projection.alone_s == pytest.approx(computing_s + 1e-3 + rest_s)
        if (projection.spec.scheme.method, topology) == ("none", "allgather"):
            exchange_s = 64e-9 * sum(LAYERS) + 0.2e-3 + 1e-3
            assert projection.exchange_s(Network(2, 500.0)) == pytest.approx(exchange_s)


@pytest.mark.parametrize(("asked", "ratio"), [(None, 0.01), (0.1, 0.1), (0.5, 0.01)])
def test_a_variant_is_projected_at_the_given_ratio_or_at_its_smallest(report, asked, ratio):
    projections = Calibrations(report.folders).projections(asked)
    assert {projections[model, "topk"].spec.ratio for model in report.runs.models} == {ratio}


@pytest.mark.parametrize("slowdown", [1.0, 2.0], ids=["this machine", "nodes twice as fast"])
def test_the_needed_rate_and_the_local_steps_are_those_of_the_table(report, capfd, tmp_path, slowdown):
    """The rate is just enough for computing to take 90 % of an iteration; so are the local steps.

    On nodes that are twice as fast, an iteration takes half of its time here over links that are half as fast.
    """
    files = inputs(report)
    if slowdown > 1:
        for model in report.runs.models:
            files["rates"].append(str(tmp_path / f"{model}-2workers.json"))
            metadata = {"model": model, "slowdown": slowdown, "nodes": {"multiply_adds_s": 1.6e12}}
            Path(files["rates"][-1]).write_text(json.dumps(metadata | {"batch": 8, "nodes_batch": 8}))
        files["calibration"] = [path for path in files["calibration"] if "/layers/" in path or "-none-" in path]
    table, text = report.table(SCRIPTS("table"), "needed", {"there": THERE}, **files)
    there, bounded, answered = Network(8, 1000.0 / slowdown, 0.1 * slowdown), 0, 0
    calibrated = [one for one in report.projections if str(one.folder / "run.json") in files["calibration"]]
    for projection in (way for one in calibrated for way in one.collective_variants(8)):
        spec = projection.spec
        own = (spec.training.model, spec.variant, spec.scheme.topology, projection.collective)
        rows = [row for row in table.to_dict("records") if own == tuple(row[key] for key in KEYS)]
        (row,) = [row for row in rows if math.isnan(row["ratio"]) or row["ratio"] == spec.ratio]
        assert row["iteration_s"] * slowdown == pytest.approx(projection.iteration_s(there), rel=1e-4)
        alone_s, rate = projection.alone_s, row["needed_mbit"] / slowdown
        near = [alone_s / projection.iteration_s(replace(there, rate_mbit=one)) for one in (rate / 1.01, rate * 1.001)]
        if 0 < rate < np.inf:
            bounded += 1
            assert near[0] < 0.9 <= near[1]
        if spec.scheme.method == "none":
            cycle_s = projection.exchange_s(there)
            steps = {least: int(row[f"local_steps_{100 * least:.0f}"]) for least in (0.5, 0.75, 0.9)}
            for least, number in steps.items():
                used = [each * alone_s / (each * alone_s + cycle_s) for each in (number - 1, number)]
                assert used[0] < least <= used[1] + 1e-9
            if row["iteration_s"] == row["dense_s"]:  # the text is about the fastest collective
                answered += 1
                assert ", ".join(f"{number:,} for {least:.0%}" for least, number in steps.items()) in text
    assert bounded and answered == len(report.runs.models) * len(TOPOLOGIES)


def test_the_advice_is_refused_without_uncompressed(report, capfd):
    files = inputs(report)
    files["calibration"] = [path for path in files["calibration"] if "/layers/" in path or "-qsgd" in path]
    with pytest.raises(SystemExit):
        report.table(SCRIPTS("table"), "refused", {"there": THERE}, **files)
    assert "advice needs it; add none" in capfd.readouterr().err


def test_the_figure_names_every_variant_at_every_ratio(report):
    text = report.figure(SCRIPTS("figure"), "advice-figure", Items(**inputs(report)), there=THERE)
    assert "computing alone (bound)" in text
    assert "DLGS, ratio 0.01" in text and "DLGS, ratio 0.1" in text and "LAGS, ratio 0.1" in text


def test_the_check_holds_each_prediction_against_its_run(report):
    timing = [path for path in report.runs.every("timing", "iterations.csv") if "-ps-" not in path]
    calibration = [str(folder / "run.json") for folder in report.folders if "-ps-" not in str(folder)]
    table, text = report.table(SCRIPTS("check"), "check", timing=timing, calibration=calibration)
    assert len(table) == len(report.runs.models) * 13
    for row in table.to_dict("records"):
        assert row["predicted_speedup"] == pytest.approx(row["predicted_dense_s"] / row["predicted_s"], rel=1e-4)
        assert row["error"] == pytest.approx(row["predicted_s"] / row["iteration_s"] - 1, abs=1e-4)
    assert f"of {len(report.runs.models)} runs" in text and f"n = {len(table)} cases" in text.replace("\u00a0", " ")
    words = report.figure(SCRIPTS("check_figure"), "check-figure", Items(table=report.folder / "check.csv"))
    assert f"{len(table)} cases" in words
    marked = report.folder / "check-marked.csv"
    table.assign(disturbed=["other work", *[None] * (len(table) - 1)]).to_csv(marked, index=False)
    words = report.figure(SCRIPTS("check_figure"), "check-figure", Items(table=marked))
    assert f"{len(table) - 1} cases" in words


class Line:
    """Predicts ``fixed_s`` and ``bits`` on the link."""

    def __init__(self, fixed_s: float, bits: float):
        self.fixed_s, self.bits = fixed_s, bits

    def iteration_s(self, there: Network) -> float:
        return self.fixed_s + self.bits / (there.rate_mbit * 1e6)


@given(st.floats(2, 1e5), st.floats(1.1, 50))
def test_a_break_even_is_the_rate_at_which_both_take_as_long(rate_mbit, fewer):
    """A method that sends less and computes longer gains below one rate and loses above it."""
    dense = Line(0.1, 1e8)
    own = Line(0.1 + (1e8 - 1e8 / fewer) / (rate_mbit * 1e6), 1e8 / fewer)
    found = iterations.break_even_mbit(dense, own, Network(2, 1.0))
    assert found == pytest.approx(rate_mbit, rel=0.1)
    assert iterations.break_even_mbit(dense, own, Network(2, 1.0), speedup=1.05) < found


def test_a_method_that_always_or_never_gains_has_no_break_even():
    dense, there = Line(0.1, 1e8), Network(2, 1.0)
    assert iterations.break_even_mbit(dense, Line(0.05, 1e7), there) == float("inf")
    assert iterations.break_even_mbit(dense, Line(0.2, 2e8), there) == 0


def test_a_method_that_sends_more_and_waits_less_pays_over_fast_links_only():
    dense, there = Line(0.1, 1e8), Network(2, 1.0)
    own = Line(0.05, 2e8)
    assert iterations.paying_mbit(dense, own, there) == (pytest.approx(2000, rel=0.01), float("inf"))
    assert iterations.break_even_mbit(dense, own, there) == 0
    best = min(Line(0.05, 2e8), Line(0.001, 4e8), key=lambda line: line.iteration_s(Network(2, 1e4)))
    either = SimpleNamespace(iteration_s=lambda at: max(best.iteration_s(at), 0.1 if at.rate_mbit > 1e4 else 0.0))
    slowest, fastest = iterations.paying_mbit(Line(0.09, 1e8), either, there)
    assert 1e3 < slowest < fastest == pytest.approx(1e4, rel=0.03)
