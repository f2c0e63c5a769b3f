"""bench/profiles.py: errors and first choices from made-up measurements, a budget, and one tiny case on real ranks."""

import json
import math
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from torch.nn import functional as F

sys.path.insert(0, str(ROOT / "bench"))
import profiles_script

import profiles
from dlgs_bench.testbed import testbed
from dlgs_bench.timemodel import job_advice
from dlgs_bench.timemodel.checked_range import TIED
from dlgs_bench.timemodel.job_profile import load
from dlgs_bench.timemodel.links import Network

RECORDED = ROOT / "tests" / "recorded_profile.json"
JOB = profiles.JOBS[0]
TOO_SLOW = 1.25  # measured / predicted of uncompressed; the methods take as long as predicted
RECORDED_ALONE_S = 0.8 * job_advice.read_job(load(RECORDED)).alone_s
ALONE_S = 1.5 * RECORDED_ALONE_S


def made_up(case: dict, blocks: int, cores: int) -> dict:
    """A finished case."""
    slowdown = 1.5 if case["workers"] > cores else 1.0
    there = Network(case["workers"], case["rate_mbit"], case["latency_ms"])
    seconds = {profiles.ALONE: [ALONE_S] * blocks}
    for name, (_, predicted_s) in profiles.predictions(load(RECORDED), there, slowdown).items():
        factor = TOO_SLOW if name == profiles.UNCOMPRESSED else 1.0
        seconds[name] = [factor * predicted_s] * blocks
    facts = {"machine": "a machine", "date": "2026-11-26T10:00:00+00:00", "commit": "abcdef0", "cores": cores}
    density = {name: 0.01 for name in seconds if name != profiles.ALONE}
    return facts | {"case": case, "data": "random", "seconds": seconds, "density": density}


def finish(runs: Path, blocks: int = 3, cores: int = 2) -> Path:
    """All cases of ``JOB``, finished."""
    folder = runs / JOB.name
    folder.mkdir(parents=True)
    (folder / profiles.PROFILE).write_bytes(RECORDED.read_bytes())
    (folder / profiles.PROBE).write_text(json.dumps({"equal_bits": True, "alone_s": [RECORDED_ALONE_S] * 3}))
    for case in profiles.cases_of(JOB):
        (folder / case["file"]).write_text(json.dumps(made_up(case, blocks, cores)))
    return runs


def kept_set(folder: Path, blocks: int = 3, cores: int = 2) -> Path:
    """A kept set of ``JOB``, with its pages. Nothing of the second job is finished."""
    profiles.keep_measured([JOB, profiles.JOBS[1]], finish(folder / "runs", blocks, cores), folder / "kept")
    profiles.write(folder / "kept")
    return folder / "kept"


@pytest.mark.unit
@pytest.mark.parametrize("cores", [2, 4])
def test_errors_follow_from_predictions_and_measurements(tmp_path, cores):
    profiles.keep_measured([JOB], finish(tmp_path, cores=cores), tmp_path)
    profiles.predict(tmp_path)
    table = pd.read_csv(tmp_path / "profiles.csv")
    given = profiles.GIVEN if cores == 2 else ""
    assert table.groupby("kind")["case"].nunique().to_dict() == {
        "other rates": 3, f"3 workers{given}": 1, f"4 workers{given}": 1, "5 ms of latency": 1,
    }  # fmt: skip
    dense = table["method"] == profiles.UNCOMPRESSED
    assert table.loc[dense, "error"].tolist() == pytest.approx([1 / TOO_SLOW - 1] * 6, abs=1e-4)
    assert table.loc[~dense, "error"].abs().max() < 1e-5
    assert table.loc[~dense, "gain_error"].tolist() == pytest.approx([1 / TOO_SLOW - 1] * dense.sum() * 5, abs=1e-4)
    assert (table["over_fastest"] >= 1).all() and (table.groupby("case")["over_fastest"].min() == 1).all()
    own = ~table["slowdown_given"]
    assert (table.loc[own, "at_speed_s"] > table.loc[own, "predicted_s"]).all()
    assert (table.loc[~own, "at_speed_s"] == table.loc[~own, "predicted_s"]).all()
    assert (table["slowdown_given"] == (table["workers"] > cores)).all() and (~own).sum() == (12 if cores == 2 else 0)
    assert table["slowdown"].tolist() == pytest.approx(own.map({False: 1.5, True: 1.0}).tolist())
    assert table["measured_s_low"].tolist() == pytest.approx(table["measured_s"].tolist(), rel=1e-4)  # as rounded


@pytest.mark.unit
@pytest.mark.slow
def test_a_kept_set_is_predicted_again_without_the_runs(tmp_path):
    """The same measurements, held against a profile whose computing was recorded half as fast."""
    folder = kept_set(tmp_path)
    shutil.rmtree(tmp_path / "runs")
    written = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    assert profiles.main([str(folder), "--budget-s", "0"]) == 0
    assert {path.name: path.read_bytes() for path in folder.glob("*.csv")} == written
    before, path = pd.read_csv(folder / "profiles.csv"), folder / profiles.RECORDED / f"{JOB.name}.json"
    slower = json.loads(path.read_text())
    for row in slower["parameters"]:
        row["arrived_s"] *= 2
    for spread in slower["times"].values():
        spread.update({key: 2 * value for key, value in spread.items()})
    path.write_text(json.dumps(slower))
    page = folder / "README.md"
    page.write_text(page.read_text().replace("\n\n", "\n\nA sentence of ours.\n\n", 1))
    assert profiles.main([str(folder), "--budget-s", "0"]) == 0
    assert page.read_text().startswith(f"{profiles.TITLE}\n\nA sentence of ours.\n\n`{profiles.PROGRAM} ")
    after = pd.read_csv(folder / "profiles.csv")
    assert after["measured_s"].tolist() == before["measured_s"].tolist()
    assert (after["predicted_s"] > 1.01 * before["predicted_s"]).all()
    assert not (tmp_path / "runs").exists()


@pytest.mark.unit
@given(st.lists(st.floats(0.9, 1.2), min_size=5, max_size=60), st.floats(0.5, 2))
def test_the_limit_of_the_overhead_is_an_order_statistic(ratios, scale):
    """It is never below the median, does not depend on the unit of time or the order, and shifts with the overhead."""
    pairs = pd.DataFrame({"with_s": [scale * ratio for ratio in ratios], "without_s": scale})
    middle, limit = profiles.overhead(pairs)
    assert limit >= middle == pytest.approx(pd.Series(ratios).median() - 1, abs=1e-9)
    assert profiles.overhead(pairs[::-1]) == pytest.approx((middle, limit))
    shifted = profiles.overhead(pairs.assign(with_s=pairs["with_s"] + 0.01 * scale))
    assert shifted == pytest.approx((middle + 0.01, limit + 0.01), abs=1e-9)


@pytest.mark.unit
def test_the_limit_of_the_overhead_holds_in_95_percent_of_the_measurements():
    """Steps vary by 5 % and drift by 20 %; the hooks cost 1 %. With fewer than 5 pairs there is no limit."""
    generator, covered, limits = np.random.default_rng(0), [], []
    for _ in range(400):
        drift = np.linspace(1, 1.2, 300)
        without_s, with_s = drift * generator.lognormal(0, 0.05, (2, 300))
        limits.append(profiles.overhead(pd.DataFrame({"with_s": with_s + 0.01, "without_s": without_s}))[1])
        covered.append(limits[-1] >= 0.01 / np.median(without_s))
    assert 0.92 < np.mean(covered) < 0.985
    assert np.median(limits) < 0.02  # so 300 pairs distinguish 1 % from 2 %
    few = pd.DataFrame({"with_s": [1.0] * 5, "without_s": 1.0})
    assert math.isnan(profiles.overhead(few[:4])[1]) and profiles.overhead(few)[1] == 0


@pytest.mark.unit
def test_steps_with_and_without_the_probe_alternate(tmp_path, monkeypatch):
    """Hooks are on the model in exactly one step of each pair, first in one pair and second in the next."""
    net, hooked = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)), []
    net.register_forward_pre_hook(lambda model, inputs: hooked.append(len(model._forward_pre_hooks) > 1))
    monkeypatch.setattr(profiles_script, "built", lambda model: net)
    profiles_script.keep_overhead(tmp_path / "overhead.csv", 4, math.inf)
    assert hooked[-8:] in ([True, False, False, True] * 2, [False, True, True, False] * 2)
    assert len(hooked) == 2 * (4 + profiles_script.WARM_UP) and len(net._forward_pre_hooks) == 1
    pairs = pd.read_csv(tmp_path / "overhead.csv")
    assert pairs["pair"].tolist() == [0, 1, 2, 3] and (pairs[["with_s", "without_s"]] > 0).all(axis=None)


@pytest.mark.unit
def test_ratios_are_of_the_same_blocks():
    seconds = {"a": [1.0, 2.0, 3.0], "b": [1.1, 2.2, 3.3]}
    assert profiles.ratio(seconds, "b", "a").value == pytest.approx(1.1)
    assert profiles.ratio(seconds, "b", "a").high == pytest.approx(1.1)


@pytest.mark.unit
def test_a_prediction_chooses_as_well_as_one_measured_block_or_does_not():
    """In the first block "b" is the fastest, in the others "a" is, by more than 5 %; "c" is always close to "a"."""
    seconds = {"a": [2.0, 1.0, 1.0], "b": [1.5, 2.0, 2.0], "c": [2.0, 1.04, 1.04]}
    assert profiles.choices_hold(seconds, "a") == pytest.approx((1, 2 / 3))
    assert profiles.choices_hold(seconds, "c") == pytest.approx((1, 2 / 3))
    assert profiles.choices_hold(seconds, "b") == pytest.approx((0, 2 / 3))
    assert all(map(math.isnan, profiles.choices_hold({name: own[:1] for name, own in seconds.items()}, "a")))


@pytest.mark.unit
@pytest.mark.slow  # torchvision and six models: about 5 seconds on a fast machine
@pytest.mark.parametrize("model", sorted({job.model for job in profiles.JOBS}))
def test_every_model_fits_its_batches_which_are_new_in_each_step(model):
    feed = profiles_script.Feed(model, 2)
    inputs, targets = feed.next()
    loss = F.cross_entropy(profiles_script.built(model)(inputs), targets)
    assert 0 < loss.item() < 20
    assert not torch.equal(inputs, feed.next()[0])
    feed.step = 0
    assert torch.equal(inputs, feed.next()[0])
    assert not torch.equal(inputs, profiles_script.Feed(model, 2, rank=1, workers=2).next()[0])


@pytest.mark.unit
def test_the_first_choice_is_compared_with_the_fastest():
    rows = [("a", 1.0, 1.2), ("a", 2.0, 1.0), ("b", 3.0, 1.0), ("b", 4.0, 5.0)]
    table = pd.DataFrame(rows, columns=["case", "predicted_s", "over_fastest"])
    assert profiles.first_choices(table)["over_fastest"].to_dict() == {"a": 1.2, "b": 1.0}


@pytest.mark.unit
def test_ties_follow_from_the_ratios_of_the_kept_cases():
    sets = [pd.read_csv(path) for path in (ROOT / "results").glob("reference-profiles*/profiles.csv")]
    factors = [profiles.tie_factor(profiles.not_given(kept)) for kept in sets]
    assert len(factors) == 2 and max(factors) == pytest.approx(TIED, abs=0.005)
    rows = [("a", 1.0), ("a", 1.2), ("b", 3.0), ("b", 4.0)]
    tied = profiles.ties(pd.DataFrame(rows, columns=["case", "predicted_s"]), 1.25)
    assert tied["predicted_s"].tolist() == [1.0, 1.2, 3.0]


@pytest.mark.unit
@pytest.mark.parametrize("kept_set", ["reference-profiles", "reference-profiles-avx2"])
@pytest.mark.parametrize("file", ["README.md", "docs/own-network.md", "dlgs_bench/advise.py", "results/README.md"])
def test_texts_have_the_errors_of_the_kept_cases(file, kept_set):
    kept = profiles.not_given(pd.read_csv(ROOT / "results" / kept_set / "profiles.csv"))
    errors, choices = 100 * kept["error"].abs(), profiles.first_choices(kept)["over_fastest"]
    text = re.sub(r'[\s"]+', " ", (ROOT / file).read_text())
    most, median = f"{errors.max():.0f} %", f"{errors.median():.0f} %"
    assert f"by {median} in the median and by {most} at most" in text or f"error {median}, worst {most}" in text
    good = f"{(choices <= profiles.CLOSE).sum()} of {len(choices)}"
    assert file == "README.md" or good in text
    if "first choice was within" in text:
        assert f"first choice was within 5 % of the fastest method in {good} cases" in text


@pytest.mark.unit
def test_texts_have_the_factor_within_which_gains_of_the_kept_cases_were_right():
    factors = []
    for kept_set in ("reference-profiles", "reference-profiles-avx2"):
        errors = profiles.not_given(pd.read_csv(ROOT / "results" / kept_set / "profiles.csv"))["gain_error"].dropna()
        factors.append(np.exp(np.log1p(errors).abs().quantile(0.9)))
    low, high = (f"{factor:.2f}" for factor in factors)
    for file, words in {
        "dlgs_bench/advise.py": f"within a factor of {low} to {high}.",
        "dlgs_bench/timemodel/checked_range.py": f"need {low} to {high},",
        "docs/own-network.md": f"{low} and {high} for profiles",
    }.items():
        assert words in re.sub(r'[\s"#]+', " ", (ROOT / file).read_text()), file


@pytest.mark.unit
def test_the_page_of_advice_has_the_errors_of_the_checked_cases():
    """Targets and verdicts, and the errors by method and by network: first of ResNet-20, then of VGG16."""
    checked = pd.read_csv(ROOT / "workflow/studies/advise/checked.csv")
    text, errors = (ROOT / "results/reference-advice/README.md").read_text(), checked["error"].abs()
    cases = checked.groupby(["model", "workers", "rate_mbit", "latency_ms"])
    over = checked.loc[cases["predicted_s"].idxmin(), "iteration_s"].to_numpy() / cases["iteration_s"].min().to_numpy()
    good, met = over <= profiles.CLOSE, profiles.met
    assert f"{met(errors.median() <= profiles.MEDIAN)}: {100 * errors.median():.1f} % (n = {len(checked)})" in text
    assert f"{met(errors.max() <= profiles.WORST)}: {100 * errors.max():.0f} % (" in text
    assert f"{met(good.mean() >= profiles.GOOD_CHOICES)}: {good.sum()} of {len(over)}" in text
    assert (
        f"median error {100 * errors.median():.0f} %, worst {100 * errors.max():.0f} %"
        in (ROOT / "README.md").read_text()
    )
    kinds = checked["workers"] + checked["latency_ms"].clip(upper=1) / 2  # 2, 2.5 with latency, 3, 4
    for method, title in {
        "cast": "16 bits",
        "topk": "Top-K",
        "dlgs": "DLGS",
        "powersgd": "PowerSGD",
        "lags": "LAGS",
    }.items():
        own = checked[checked["method"] == method]
        cells = [", ".join(f"{100 * error:+.0f} %" for error in rows) for _, rows in own["error"].groupby(kinds)]
        assert f"| {title} | {' | '.join(cells)} |" in text


@pytest.mark.unit
def test_the_baseline_is_the_best_constant_choice():
    rows = [("a", "A", 1.0), ("a", "B", 1.2), ("b", "A", 1.5), ("b", "B", 1.05), ("c", "A", 1.3), ("c", "B", 1.0)]
    table = pd.DataFrame(rows, columns=["case", "title", "over_fastest"])
    assert profiles.constant_choice(table) == ("B", 2)


@pytest.mark.unit
def test_gains_within_a_factor_are_counted_on_both_sides():
    errors = pd.DataFrame({"gain_error": [0.0, 0.49, 0.51, 1 / 1.49 - 1, 1 / 1.51 - 1, math.nan]})
    assert profiles.within(errors, 1.5) == (3, 5)


@pytest.mark.unit
@pytest.mark.parametrize("blocks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_pages_say_what_was_measured(tmp_path, blocks):
    folder = kept_set(tmp_path, blocks)
    names = {"README.md", "probe.csv", "profiles.csv", "profiles.md", "profiles.png", "profiles.svg",
             profiles.BLOCKS, profiles.RECORDINGS, profiles.RECORDED}  # fmt: skip
    assert {path.name for path in folder.iterdir()} == names
    page, table = (folder / "profiles.md").read_text(), pd.read_csv(folder / "profiles.csv")
    assert len(table) == 36 and table["measured_s_low"].isna().all() == (blocks < 3)
    for text in (page, (folder / "README.md").read_text()):
        assert "24 iterations in 4 cases were predicted, from one profile for each of 1 jobs, with at most" in text
        assert "median 0.0 %, worst 20 % (uncompressed," in text and "worst 25 % (met)" in text
        assert "The other 12 iterations in 2 cases had more workers than cores." in text
        assert f"{4 * (blocks == 3)} of 4 cases have the three blocks" in text
        assert "kept their bits in 1 of 1 jobs" in text and "no measurement of the probe's overhead" in text
        assert "nan" not in text.lower()
    assert page.count(f"{JOB.name}, ") == 37
    assert page.count("| -20 % ") == 6 + 2 + 1  # with 3 and 4 workers at the case's speed too, and a mean
    pairs = pd.DataFrame({"with_s": [1.01] * 300, "without_s": 1.0})
    assert "is 1.00 %. Target: at most 2 % (met)" in profiles.of_overhead(pairs)
    assert "is 3.00 %. Target: at most 2 % (missed)" in profiles.of_overhead(pairs.assign(with_s=1.03))


@pytest.mark.unit
def test_a_budget_is_shared_and_a_stopped_run_goes_on(tmp_path, monkeypatch):
    jobs, now, started = list(profiles.JOBS[:2]), [0.0], []

    def measure(job, cases, folder, until, end):
        """Takes exactly its share of the time. The second launch fails."""
        started.append((job.name, len(cases)))
        assert now[0] < until <= end + 1e-6 and end - now[0] >= profiles.LEAST_LAUNCH_S
        now[0] = until
        folder.mkdir(parents=True, exist_ok=True)
        for name in [profiles.PROBE, *(case["file"] for case in cases)] if len(started) != 2 else []:
            (folder / name).touch()
        return len(started) != 2

    monkeypatch.setattr(profiles, "measure", measure)
    monkeypatch.setattr(profiles, "time", SimpleNamespace(time=lambda: now[0]))
    assert profiles.measure_all(jobs, tmp_path, profiles.LEAST_LAUNCH_S - 1) and not started
    assert not profiles.measure_all(jobs, tmp_path, 1000.0)
    first, second = (job.name for job in jobs)
    assert started == [(first, 3), (first, 1), (second, 3), (second, 1), (second, 1), (second, 1)]
    assert now[0] == pytest.approx(1000)
    assert profiles.measure_all(jobs, tmp_path, 100.0) and started[6:] == [(first, 1), (first, 1)]
    assert profiles.measure_all(jobs, tmp_path, 100.0) and len(started) == 9


@pytest.mark.unit
def test_after_a_failure_the_other_cases_of_the_job_are_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(profiles, "measure", lambda *arguments: False)
    assert not profiles.measure_all([JOB], tmp_path, 100.0)
    assert capsys.readouterr().out.count("its other cases are left out") == 3


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("script", ["ddp", "accelerate"])
def test_a_tiny_case_on_real_ranks(tmp_path, script):
    if testbed.why_unavailable():
        pytest.skip(f"no testbed here: {testbed.why_unavailable()}")
    job = replace(JOB, script=script, batch=2, rates_mbit=(400, 800), steps=2)
    folder, now = tmp_path / "runs" / job.name, time.time()
    cases = profiles.cases_of(job)[:1]
    assert profiles.measure(job, cases, folder, now, now + 300)
    assert json.loads((folder / profiles.PROBE).read_text())["equal_bits"]
    found = json.loads((folder / cases[0]["file"]).read_text())
    assert {name: len(blocks) for name, blocks in found["seconds"].items()} == dict.fromkeys(
        ("alone", "none", "cast", "dlgs", "lags", "powersgd", "topk"), 1
    )
    entries = sum(job_advice.read_job(load(folder / profiles.PROFILE)).sizes)
    assert {name: sum(buckets) for name, buckets in found["buckets"].items()} == dict.fromkeys(
        ("none", "cast", "dlgs", "lags", "powersgd", "topk"), entries
    )
    assert found["density"]["none"] == 1 and 0.005 < found["density"]["topk"] < 0.02
    profiles.keep_measured([job], tmp_path / "runs", tmp_path / "kept")
    profiles.write(tmp_path / "kept")
    assert (pd.read_csv(tmp_path / "kept" / "profiles.csv")["measured_s"] > 0).all()
