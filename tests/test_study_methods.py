"""The study of methods: its runs, and its table and pictures from made-up ones."""

import re
import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from report_runs import CLUSTER, VARIANTS, Runs, Scheme, describe
from support import CLASSES, METHODS, make, read
from test_report import Items, Report

from dlgs_bench import plugins
from dlgs_bench.config import load as config
from dlgs_bench.exchange import LocalSteps
from dlgs_bench.report import curves, ranking
from dlgs_bench.spec import Cluster, RunSpec

pytestmark = pytest.mark.unit

CURVE = pd.DataFrame(
    {"step": [10, 20, 30], "test_accuracy": [0.2, 0.4, 0.3], "sent_bytes": [5.0, 9.0, 12.0], "seed": 0}
)


@pytest.mark.parametrize("target, step", [(0.1, 10), (0.2, 10), (0.3, 15), (0.4, 20), (0.5, np.inf)])
def test_steps_to_an_accuracy_lie_on_straight_lines_between_points(target, step):
    assert curves.steps_to(CURVE, target) == pytest.approx(step)


@pytest.mark.parametrize("budget, step", [(1, 10), (9, 20), (9.5, 30), (100, 30)])
def test_the_point_at_a_number_of_bytes_is_the_first_that_spent_them(budget, step):
    assert curves.at_bytes(CURVE, budget)["step"] == step


def test_a_curve_of_seeds_is_the_mean_of_the_points_that_all_have():
    other = CURVE.assign(seed=1, test_accuracy=0.6)[CURVE["step"] != 20]
    found = curves.mean(pd.concat([CURVE, other]))
    assert list(found["step"]) == [10, 30] and found["test_accuracy"].to_numpy() == pytest.approx([0.4, 0.45])


TIMES = pd.DataFrame({"to_target_s_30": [10.0, 15.0, 40.0, np.inf], "to_target_s_300": [6.0, 3.0, np.inf, np.inf]})


def test_a_score_is_the_area_under_the_performance_profile():
    """The profile is built point by point: the part of the rates at which a method takes at most x times the best."""
    ratios = (TIMES / TIMES.min()).to_numpy()
    x = np.linspace(1, ranking.AT_MOST, 30_001)
    profiles = (ratios[:, :, None] <= x).mean(axis=1)
    assert ranking.scores(TIMES).to_numpy() == pytest.approx(profiles.mean(axis=1), abs=1e-4)


def test_no_method_has_a_score_at_a_rate_at_which_none_reaches_the_target():
    never = TIMES.assign(to_target_s_300=np.inf)
    assert list(ranking.scores(never)) == pytest.approx([0.5, 0.5 * 2.5 / 3, 0, 0])
    assert np.isinf(ranking.relative(never)["300"]).all()


def test_resampled_steps_have_the_noise_of_the_test_set():
    """At the crossing, from 0.2 to 0.4 in 10 steps, an accuracy of variance p (1 - p) / n moves the step."""

    def drawn(samples: int, seed: int = 0) -> np.ndarray:
        generator = np.random.default_rng(seed)
        return curves.resampled_steps_to(CURVE.iloc[:2], 0.3, (samples, samples), 4000, generator)

    noise = (0.5**2 * (0.2 * 0.8 + 0.4 * 0.6) / 10_000) ** 0.5  # of the line half-way
    assert drawn(10_000).mean() == pytest.approx(15, abs=0.05)
    assert drawn(10_000).std() == pytest.approx(noise * 10 / 0.2, rel=0.1)
    assert np.array_equal(drawn(500), drawn(500)) and not np.array_equal(drawn(500), drawn(500, seed=1))
    assert np.isinf(curves.resampled_steps_to(CURVE, 0.99, (500, 500), 10, np.random.default_rng(0))).all()


def test_resampled_steps_have_the_noise_of_seeds():
    """Three seeds reach 0.5 after 10, 20 and 30 steps: the standard error of their mean is 10 / 3 ** 0.5."""
    line = np.arange(0.0, 101.0)
    seeds = pd.concat(
        pd.DataFrame({"seed": seed, "step": line, "test_accuracy": 0.5 + (line - 10 * (seed + 1)) / 1000})
        for seed in range(3)
    )
    found = curves.resampled_steps_to(seeds, 0.5, (10**9, 10**9), 4000, np.random.default_rng(0))
    assert found.mean() == pytest.approx(20, abs=0.5) and found.std() == pytest.approx(10 / 3**0.5, rel=0.1)


def test_a_score_has_the_range_of_its_draws():
    """The first method takes 10 or 20 steps, uncompressed always 15; one second a step at each rate."""
    per_step = pd.DataFrame({"to_target_s_30": [1.0, 1.0]})
    found = ranking.resampled(per_step, np.array([[10, 15], [20, 15]] * 50), pd.Series([False, True]))
    assert list(found["sooner_30"]) == [0.5, 0.0]
    assert list(found["score_low"]) == pytest.approx([1 - (20 / 15 - 1) / 3, 1 - (15 / 10 - 1) / 3])
    assert list(found["score_high"]) == [1, 1]
    assert found["score_sd"][0] == pytest.approx((1 - found["score_low"][0]) / 2)


@pytest.mark.parametrize(
    "bits, accuracy, unbeaten",
    [([1, 2, 3], [0.1, 0.2, 0.3], [1, 1, 1]), ([1, 1, 2], [0.1, 0.2, 0.2], [0, 1, 0]), ([2, 2], [0.3, 0.3], [1, 1])],
)
def test_a_method_is_beaten_by_another_that_is_no_worse_in_both_and_better_in_one(bits, accuracy, unbeaten):
    found = ranking.unbeaten(pd.DataFrame({"bits_per_entry": bits, "accuracy": accuracy}))
    assert list(found) == [bool(one) for one in unbeaten]


# Its runs


def runs_of(**study) -> dict[str, RunSpec]:
    values = read("quick") | {"network": "testbed", "studies": {"methods": study}}
    values["models"]["resnet20"]["warmup_epochs"] = 1
    return config.load(values, "c").studies["methods"]


def timed(runs: dict[str, RunSpec], model: str) -> list[RunSpec]:
    return [spec for spec in runs.values() if spec.kind == "timing" and spec.training.model == model]


def test_every_method_is_trained_once_and_timed_once_on_each_model_and_at_each_rate():
    runs = runs_of(rates_mbit=[30, 300], together=9)
    trained = [spec for spec in runs.values() if spec.kind == "accuracy"]
    assert sorted(spec.variant for spec in trained) == METHODS
    assert {spec.training.model for spec in trained} == {"resnet20"}
    assert all(not spec.training.lr_steps and not spec.training.warmup_epochs for spec in trained)  # a constant rate
    for model, rates in (("vgg16", {()}), ("resnet50", {()}), ("resnet20", {(30.0, 30.0), (300.0, 300.0)})):
        assert {spec.cluster.rates_mbit for spec in timed(runs, model)} == rates
        for rate in rates:
            together = [spec for spec in timed(runs, model) if spec.cluster.rates_mbit == rate]
            entrants = [v for spec in together for v in {one.variant for one in spec.members.values()}]
            assert sorted({*entrants}) == METHODS
            assert len(entrants) == len(METHODS) + 2 * (len(together) - 1)  # two are in every run
            for spec in together:
                here = [one.variant for one in spec.members.values()]
                assert here[:6] == ["none"] * 3 + ["cast"] * 3 and len(here) <= 6 + 9


def test_every_method_with_local_steps_exchanges_several_times():
    local = [name for name in METHODS if issubclass(CLASSES[name], LocalSteps)]
    trained = {spec.variant: spec for spec in runs_of().values() if spec.kind == "accuracy"}
    for name in local:
        training, samples = trained[name].training, 50_000
        steps = training.train_epochs * samples / (training.batch * trained[name].cluster.workers)
        assert steps / make(name).local_steps >= 8


def test_methods_may_be_chosen_and_the_baseline_is_timed_with_them():
    runs = runs_of(methods=["topk"], rates_mbit=[100])
    assert sorted(spec.variant for spec in runs.values() if spec.kind == "accuracy") == ["cast", "none", "topk"]
    (spec,) = timed(runs, "vgg16")
    dense = [f"{name}{how}" for name in ("none", "cast") for how in ("", "-256kib", "-planned")]
    assert list(spec.members) == [*dense, "topk-0.01"]
    assert spec.members["topk-0.01"].scheme.options["selection"] == "compiled"


@pytest.mark.parametrize(
    "study, expected",
    [
        ({"methods": ["tpk"]}, "studies.methods.methods: 'tpk' is not a variant or a file in methods/.*did you mean"),
        ({"variants": {"top k": {"method": "topk"}}}, "studies.methods.variants.*'top k'"),
        ({"variants": {"x": {"method": "topk", "k": 1}}}, "studies.methods.variants.x: unknown key 'k'"),
        ({"lr": {"topk": 0}}, "studies.methods.lr.topk: 0 is not valid; give a learning rate"),
    ],
)
def test_a_mistake_in_the_study_is_one_line(study, expected):
    with pytest.raises(config.ConfigError, match=expected):
        runs_of(**study)


def test_without_a_testbed_it_is_timed_on_the_hosts_network():
    values = read("quick") | {"network": "host", "studies": {"methods": {"methods": ["topk"]}}}
    runs = config.load(values, "c").studies["methods"]
    assert {spec.cluster for spec in timed(runs, "resnet20")} == {Cluster("torch_dist")}


# Its table and pictures


def write_together(runs: Runs, model: str, rate: float) -> str:
    """A timing run of DLGS, Top-K and QSGD together, at a rate; the path of its iterations."""
    timed_with = {name: {"method": name, "options": {}} for name in ("topk", "qsgd")}
    timed_with["dlgs-0.1"] = {"method": "dlgs", "variant": "", "options": {"ratio": 0.1}}
    scheme = Scheme(timed_with=timed_with)
    cluster = replace(CLUSTER, rates_mbit=(rate, rate))
    rows = [runs.iterations(label, scheme.alone(label), 10 / rate) for label in ("none", *timed_with)]
    spec = RunSpec("timing", runs.training(model), scheme, cluster)
    place = runs.write(f"together/{model}-{rate:g}", spec, iterations=pd.concat(rows))
    return str(place / "iterations.csv")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    stderr = sys.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "describe", describe)
        made = Report(tmp_path_factory.mktemp("methods"), ("resnet20", "vgg16", "resnet50"))
        made.runs.titles["variants"] = {v: VARIANTS[v][0] for v in ("none", "qsgd", "topk", "dlgs")}
        for variant, seed in product(made.runs.titles["variants"], (0, 1)):
            method, ratio = VARIANTS[variant][1], {"ratio": 0.1} if VARIANTS[variant][2] else {}
            made.runs.accuracy(f"accuracy/{variant}-{seed}", "resnet20", Scheme(method, variant, ratio), seed)
        inputs = {
            "accuracy": made.runs.every("accuracy", "points.csv"),
            "timing": [write_together(made.runs, model, 500.0) for model in ("vgg16", "resnet50")],
            "rates": [write_together(made.runs, "resnet20", rate) for rate in (100.0, 200.0)],
        }
        made.files = {name: made.folder / f"methods_{name}.csv" for name in inputs}
        made.params = {
            "baseline": "qsgd",
            "megabytes": 5,
            "target": 0.5,
            "test_samples": 500,
            "final_test_samples": 1000,
        }
        made.script("studies/methods/collect.py", Items(**inputs), Items(**made.files), **made.params)
        yield made
    sys.stderr = stderr


def test_one_row_a_variant_with_what_it_sends_learns_and_takes(report):
    table, shown = report.table("studies/methods/table.py", "methods", report.params, **report.files)
    table = table.set_index("variant")
    assert sorted(table.index) == ["dlgs", "none", "qsgd", "topk"] and (table["seeds"] == 2).all()
    assert table["score"].is_monotonic_decreasing and table["score"].iloc[0] > 0
    assert table["density"].to_numpy() == pytest.approx(0.0505) and set(table["vnmse"]) == {0.25}
    at = pd.read_csv(report.files["accuracy"])
    at = at[(at["variant"] == "topk") & (at["step"] == 50)]["test_accuracy"]  # 50 steps of 0.1 MB
    assert table["accuracy_at_bytes"]["topk"] == pytest.approx(at.mean(), rel=1e-4)
    assert table["vgg16_speedup"]["none"] == 1 and table["resnet50_against"]["qsgd"] == 1
    slow, fast = table["to_target_s_100"], table["to_target_s_200"]
    reached = np.isfinite(slow)
    assert reached.any() and (slow[reached] > 1.5 * fast[reached]).all()
    assert (table["score_low"] <= table["score"]).all() and table["score_sd"].notna().all()
    assert (table[["sooner_100", "sooner_200"]].loc["none"] == 0).all() and "Score for 45, 55 %" in shown
    assert "VGG16, against QSGD" in shown and "at 100, 200 Mb/s (s)" in shown


@pytest.mark.slow
def test_its_pictures_show_every_variant_at_every_rate(report):
    report.table("studies/methods/table.py", "methods", report.params, **report.files)
    inputs = Items(accuracy=report.files["accuracy"], table=report.folder / "methods.csv")
    text = report.figure("studies/methods/by_bytes.py", "bytes", inputs, **report.params)
    assert all(VARIANTS[v][0] in text for v in ("none", "topk", "dlgs")) and "bits per entry" in text
    text = report.figure("studies/methods/ranking.py", "ranking", inputs, **report.params)
    assert all(f"{VARIANTS[v][0]} (" in text for v in ("none", "qsgd", "topk", "dlgs"))
    assert "links of 100 Mb/s" in text and "links of 200 Mb/s" in text
    models = ["resnet50", "vgg16"]
    timing = pd.read_csv(report.files["timing"])
    seconds = [column for column in timing if column.endswith("_s")]
    timing.loc[timing["timed"] == "dlgs", seconds] /= 2  # the last in the configuration's order
    timing.to_csv(report.folder / "faster.csv", index=False)
    inputs = Items(tidy=report.folder / "faster.csv")
    text = report.figure("scripts/breakdown.py", "parts", inputs, model=models, fastest_first=True)
    assert "VGG16" in text and "ResNet-50" in text
    times = [int(ms) for ms in re.findall(r"(\d+) ms ", text)]
    assert len(times) == 8 and times[:4] == sorted(times[:4]) and times[4:] == sorted(times[4:])
