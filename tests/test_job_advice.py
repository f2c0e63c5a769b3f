"""Advice from a job's profile: its laws, its units, and that bad profiles and options end in one line."""

import copy
import errno
import gzip
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, examples, refused_by

from dlgs_bench import advise, figure_file
from dlgs_bench.timemodel import advice, iterations, job_advice, trained
from dlgs_bench.timemodel.checked_range import CHECKED, SPEEDUP_FACTOR
from dlgs_bench.timemodel.iterations import break_even_mbit, paying_mbit
from dlgs_bench.timemodel.job_profile import DDP_DEFAULTS, FORMAT, PARTS, VERSION, check, load
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.timeline import schedule

pytestmark = pytest.mark.unit
RECORDED = ROOT / "tests" / "recorded_profile.json"  # 2 ranks of a small convolutional network, Gloo, a shared machine
STEP_S = 1e-5  # of each message of the synthetic network
PROCESSOR_S = STEP_S / 2  # processor time of each of its messages, and of 2^30 bytes of an operation's tensor


def network_rows(workers: int, rate_mbit: float) -> list[dict]:
    """What a network takes in which each message costs ``STEP_S``, and each byte its time on the link."""
    steps = {"all-reduce": 2 * (workers - 1), "all-gather": workers - 1, "message": 1}
    on_link = {"all-reduce": 2 * (workers - 1) / workers, "all-gather": workers - 1, "message": 1}
    return [
        {"operation": operation, "workers": workers, "bytes": size,
         "seconds": steps[operation] * STEP_S + on_link[operation] * (size - 4) * 8e-6 / rate_mbit,
         "processor_s": PROCESSOR_S * (1 + size / 2**30)}
        for operation in steps for size in (4, 2**16, 2**20, 2**25) if workers > 1
    ]  # fmt: skip


def method(name: str, scope: str, seconds: float, **each: float) -> dict:
    """A method with one request per exchange, of ``each`` byte per entry, and ``seconds`` of work per entry."""
    zero = {key: 0.0 for keys in job_advice.OPERATION_FIELDS.values() for key in keys[:2]}
    samples = []
    for entries in (2**10, 2**14, 2**18, 2**22):
        for workers in (2, 8):
            asked = {requests: 1.0 for requests, sent, _ in job_advice.OPERATION_FIELDS.values() if sent in each}
            sent = {key: value * entries for key, value in each.items()}
            row = {"entries": entries, "workers": workers, "seconds": 1e-5 + seconds * entries}
            samples.append(row | zero | asked | sent)
    return {"name": name, "title": name, "scope": scope, "baseline": name == "half", "options": {}, "samples": samples}


def profile_of(
    sizes=(1000, 200_000, 3_000_000), workers=2, rate_mbit=1000.0, dtype="float32", part_s=0.01, idle_cores=None
) -> dict:
    times = {part: {"median_s": part_s, "low_s": part_s, "high_s": part_s} for part in PARTS}
    arrived = np.linspace(part_s / len(sizes), part_s, len(sizes))
    profile = {
        "format": FORMAT,
        "version": VERSION,
        "job": {"steps": 30, "passes": 1, "exchanges": 1, "kind": "ddp" if workers > 1 else "single", "backend": "gloo",
                "workers": workers, "device": "cpu", "device_name": "test", "threads": 1, "versions": {},
                "machine": {"cores": 64, "workers": workers, "interfaces": None}, "idle_cores": idle_cores,
                "ddp": dict(DDP_DEFAULTS) if workers > 1 else None},
        "parameters": [
            {"shape": [size], "dtype": dtype, "arrived_s": float(at)} for size, at in zip(sizes, arrived, strict=True)
        ],
        "times": times,
        "network": network_rows(workers, rate_mbit),
        "selection": [],
        "methods": [
            method("half", "size", 1e-10, summed_bytes=2.0),
            method("sparse", "model", 1e-9, gathered_bytes=0.08),
            method("layered", "layer", 1e-9, gathered_bytes=0.08),
            method("merging", "plan", 1e-9, message_bytes=0.08),
        ],
        "left_out": {"local": "it exchanges weights after local steps"},
    }  # fmt: skip
    check(profile)
    return profile


@st.composite
def profiles(draw):
    sizes = draw(st.lists(st.integers(1, 10**7), min_size=1, max_size=6))
    workers, rate = draw(st.sampled_from([1, 2, 4])), draw(st.floats(1, 1e6))
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    idle = draw(st.none() | st.floats(0, 2))
    return profile_of(tuple(sizes), workers, rate, dtype, draw(st.floats(1e-4, 1)), idle)


networks = st.builds(Network, st.integers(2, 1024), st.floats(1, 1e6), st.floats(0, 10))


def by_name(profile: dict) -> dict[str, job_advice.JobModel]:
    return {model.name: model for model in job_advice.models(profile)}


def all_models(profile: dict) -> list[job_advice.JobModel]:
    return [*job_advice.models(profile), *job_advice.script_models(profile)]


@pytest.mark.parametrize(("workers", "alone_s"), [(1, 2 + 3 + 23 + 13 + 7 + 11), (2, 2 + 3 + 23 + 7 + 11)])
def test_every_part_of_an_iteration_counts_once(workers, alone_s):
    """The last gradient arrives 6 s before backward ends. A single process does not wait for others, but clips."""
    profile = profile_of(workers=workers, part_s=17.0)
    seconds = {"forward": 2, "loss": 3, "backward": 23, "waiting": 13, "optimizer": 7, "other": 11, "iteration": 97}
    assert set(seconds) == set(PARTS)
    for part, median_s in seconds.items():
        profile["times"][part]["median_s"] = float(median_s)
    job = job_advice.read_job(profile)
    assert (job.forward_s, sum(job.backward_s), job.recorded_s) == (2 + 3, pytest.approx(17), 97)
    assert job.alone_s == pytest.approx(alone_s)


@examples(1)
@given(profiles(), networks, st.floats(1, 100))
def test_faster_links_never_make_a_method_slower(profile, there, faster):
    for model in all_models(profile):
        slower_s = model.iteration_s(there)
        assert model.iteration_s(replace(there, rate_mbit=there.rate_mbit * faster)) <= slower_s * (1 + 1e-12)


@examples(1)
@given(profiles(), networks)
def test_an_iteration_is_the_fastest_schedule(profile, there):
    for model in all_models(profile):
        costs = model.costs(there)
        slow = min(schedule(model.job.sizes, costs, plan).iteration_s for plan in model.plans)
        slow += model.job.rest_s + model.job.unexplained_s
        assert model.iteration_s(there) == pytest.approx(slow) and slow >= model.job.alone_s * (1 - 1e-12)


@examples(1)
@given(st.sampled_from([1, 2]), st.integers(2, 64), st.floats(0.001, 10), st.floats(1, 300))
def test_latency_is_added_to_an_exchange_whatever_its_size(recorded, workers, latency_ms, larger):
    """Also beyond the measured sizes, and with a profile of one process, which has none."""
    job = job_advice.read_job(profile_of(workers=recorded))
    near, far = (job_advice.projected(job, Network(workers, 25_000.0, ms)) for ms in (0.0, latency_ms))
    rounds = {"all-reduce": 2 * (workers - 1), "all-gather": 1, "message": 1}
    for name, waits in rounds.items():
        for words in (100.0, 2.0**23, larger * 2**23):
            more_s = far[name](words) - near[name](words)
            more, off = (job_advice._more_waits(words, workers), 2) if name == "all-reduce" else (0, 0)
            off_s = 2e-3 * latency_ms * off * (workers - 1) + 1e-9  # two segments, between the points of the curve
            assert more_s == pytest.approx(2e-3 * latency_ms * (waits + more), rel=0.01, abs=off_s)


@pytest.mark.parametrize("more_ms", [0.0, 1.4, 1.6, 5.6])
@pytest.mark.parametrize("workers", [2, 4])
def test_on_the_recorded_network_an_operation_takes_what_was_recorded(workers, more_ms):
    """Also if messages take so long without latency that it looks like latency."""
    profile = profile_of(workers=workers)
    for row in profile["network"]:
        row["seconds"] += more_ms * 1e-3 * (2 * (workers - 1) if row["operation"] == "all-reduce" else 1)
    job = job_advice.read_job(profile)
    assert job.latency_ms == pytest.approx(more_ms / 2)
    found = job_advice.projected(job, job.here)
    for row in profile["network"]:
        assert found[row["operation"]](row["bytes"] / 4) == pytest.approx(row["seconds"], rel=1e-3)


def test_a_little_more_time_of_a_message_changes_no_prediction_much():
    """Whether a millisecond is latency or work decides how it grows with the workers, so it must not flip."""
    there, found = Network(64, 1e4), []
    for message_ms in (1.97, 1.99, 2.01, 2.03):
        profile = profile_of()
        for row in profile["network"]:
            row["seconds"] += 1e-3 * message_ms * (2 if row["operation"] == "all-reduce" else 1)
            row["processor_s"] += 0.4e-3
        found.append({name: model.iteration_s(there) for name, model in by_name(profile).items()})
    for one, other in itertools.pairwise(found):
        assert all(other[name] == pytest.approx(seconds, rel=0.05) for name, seconds in one.items())


@pytest.mark.parametrize("mib", [1, 8, 32, 100, 400])
@pytest.mark.parametrize(("recorded", "workers"), [(2, 64), (16, 64), (64, 2)])
def test_segments_of_a_sum_wait_beyond_the_measured_sizes_too(recorded, workers, mib):
    """A worker's chunk is sent in segments of 1 MiB, two at a time."""
    found = job_advice.projected(job_advice.read_job(profile_of(workers=recorded)), Network(workers, 1e4, 2.0))
    seconds = found["all-reduce"](mib * 2**20 / 4)
    rounds, segments = 2 * (workers - 1), max(2, math.ceil(mib / workers))
    on_link_s = rounds / workers * (mib * 2**20 - 4) * 8e-6 / 1e4
    waits_s = 4e-3 * (rounds + (workers - 1) * (segments - 2))
    assert seconds == pytest.approx(rounds * STEP_S + on_link_s + waits_s, rel=0.01)


def test_a_size_that_was_not_measured_with_all_numbers_of_workers_does_not_count():
    """It was too much for the memory of some of them."""
    whole, part = profile_of(), profile_of()
    for one in part["methods"]:
        one["samples"] = [row for row in one["samples"] if row["workers"] == 2 or row["entries"] < 2**22]
    for full, other in zip(job_advice.models(whole), job_advice.models(part), strict=True):
        there = Network(64, 1e4)
        assert other.iteration_s(there) == pytest.approx(full.iteration_s(there), rel=0.01), full.name


@pytest.mark.parametrize(("backend", "latency_ms"), [("gloo", 5.0), ("gloo", 0.0), ("nccl", 5.0)])
def test_two_sums_of_gloo_wait_for_latency_at_the_same_time(backend, latency_ms):
    """Nothing is lost, no more than the waits is overlapped, and no more than one of two sums."""
    profile = profile_of()
    profile["job"]["backend"] = backend
    model, there = job_advice.models(profile)[0], Network(4, 500, latency_ms)
    costs, words = (
        model.costs(there),
        np.array([2.0**power for power in range(4, 40) if 2**power < sum(model.job.sizes)]),
    )
    whole_s = job_advice.projected(model.job, there)["all-reduce"](words)
    assert costs.communicate(words) + costs.latency(words) == pytest.approx(whole_s, rel=1e-3)
    waits_s = 2e-3 * latency_ms * np.array([6 + job_advice._more_waits(each, 4) for each in words])
    overlapped_s = np.minimum(waits_s, whole_s / 2) if backend == "gloo" else np.zeros_like(words)
    assert costs.latency(words) == pytest.approx(overlapped_s, rel=0.05, abs=1e-6)


@pytest.mark.parametrize(("workers", "rate_mbit"), [(2, 1000.0), (2, 100.0), (8, 5000.0), (64, 25.0)])
def test_an_all_reduce_costs_elsewhere_what_it_would_be_measured_to_cost(workers, rate_mbit):
    here, there = (
        job_advice.read_job(profile_of(workers=w, rate_mbit=r)) for w, r in ((2, 1000.0), (workers, rate_mbit))
    )
    assert here.here.rate_mbit == pytest.approx(1000)
    found = job_advice.projected(here, there.here)
    words = np.array([2.0**14, 2.0**18, 2.0**23])
    for name in job_advice.OPERATION_FIELDS:
        assert found[name](words) == pytest.approx(there.operations[name](words), rel=1e-3)


def test_a_disturbed_measurement_of_a_small_tensor_is_corrected():
    profile = profile_of()
    there, before = Network(4, 300), [model.iteration_s(Network(4, 300)) for model in job_advice.models(profile)]
    for row in profile["network"]:
        if row["bytes"] == 4:
            row["seconds"] *= 1000
    after = [model.iteration_s(there) for model in job_advice.models(profile)]
    assert after == pytest.approx(before, rel=0.05)


def test_costs_of_other_numbers_of_workers_follow_the_measured_lines():
    work = [{"entries": 8, "workers": workers, "seconds": 3 + 2 * workers} for workers in (2, 8)]
    at = job_advice._fit(work, lambda row: row["seconds"], lambda workers: workers)
    assert at(np.array([8.0, 16.0]), 64) == pytest.approx([131, 262])
    (alone,) = job_advice._fit(work[:1], lambda row: row["seconds"], lambda workers: workers)(np.array([8.0]), 64)
    assert alone == pytest.approx(7)


@examples(1)
@given(st.data())
def test_beyond_the_measured_workers_a_disturbed_sample_makes_nothing_free(data):
    """Work and requests do not fall with more workers, and the bytes of a request fall at most as 1 / N."""
    positive = st.floats(1e-6, 1e9)
    keys = [key for keys in job_advice.OPERATION_FIELDS.values() for key in keys[:2]]
    samples = [
        {"entries": entries, "workers": workers, "seconds": data.draw(positive)}
        | {key: data.draw(positive) for key in keys}
        for entries in (2**10, 2**14)
        for workers in (2, 8)
    ]
    row = method("noisy", "size", 0.0) | {"samples": samples}
    model = job_advice.JobModel(job_advice.read_job(profile_of()), row)
    entries, tolerance = np.array([2.0**10, 2.0**14]), 1 - 1e-9
    for more in (9, 16, 1024):
        assert (model._seconds_by(entries, more) >= tolerance * model._seconds_by(entries, 8)).all()
        for own in model._loads.values():
            assert (own.requests(entries, more) >= tolerance * own.requests(entries, 8)).all()
            assert (own.bytes_each(entries, more) >= tolerance * own.bytes_each(entries, 8) * 8 / more).all()
    assert (model._seconds_by(entries, 8) > 0).all()


@examples(1)
@given(profiles(), networks, st.floats(0.3, 0.95))
def test_the_needed_rate_is_the_least_that_is_enough(profile, there, least):
    for model in job_advice.models(profile):
        rate = job_advice.needed_mbit(model, there, least)
        used = [
            job_advice.utilisation(model, replace(there, rate_mbit=near))
            for near in (rate / 1.01, rate * 1.001)
            if 0 < rate < math.inf
        ]
        if used:
            assert used[0] < least <= used[1]
        elif rate == 0:
            assert job_advice.utilisation(model, there) >= least
        else:
            assert job_advice.utilisation(model, there) < least


@examples(1)
@given(profiles(), networks)
def test_a_method_pays_below_its_rate_and_not_above_it(profile, there):
    dense, *others = job_advice.models(profile)
    for model in others:
        slowest, rate = paying_mbit(dense, model, there)
        if slowest:
            network = replace(there, rate_mbit=1.0)
            assert dense.iteration_s(network) <= model.iteration_s(network) * (1 + 1e-9)
            assert break_even_mbit(dense, model, there) == 0
        if rate < math.inf:
            for above in (2 * rate, 20 * rate):  # within a step of the rates that are tried, and far above
                if 2 <= above <= iterations.FASTEST_MBIT:
                    network = replace(there, rate_mbit=above)
                    assert dense.iteration_s(network) <= model.iteration_s(network) * (1 + 1e-9)


def fewest_local_steps(job: job_advice.Job, there: Network, least: float, most: int) -> int:
    """The local steps that reach a utilisation, by trying 1, 2, ... up to ``most``, on a clock.

    The exchange of weights is that of an uncompressed iteration with one bucket, of a job of float32.
    """
    one_bucket = job_advice.JobModel(job, plans=[[(0, len(job.sizes))]])
    exchange_s = one_bucket.iteration_s(there) - job.alone_s
    computed_s = 0.0
    for steps in range(1, most + 1):
        computed_s += job.alone_s
        if computed_s >= least * (computed_s + exchange_s):
            return steps
    return most + 1


@examples(1)
@given(profiles(), networks)
def test_the_local_steps_are_the_fewest_that_are_enough(profile, there):
    for row in profile["parameters"]:
        row["dtype"] = "float32"
    job, most = job_advice.read_job(profile), 2000
    shown = advise._local_steps(job_advice.models(profile)[0], there)
    rows = job_advice.local_steps_rows(job, there)
    assert [row["utilisation"] for row in rows] == [0.5, 0.75, 0.9]
    for row in rows:
        least, steps = row["utilisation"], row["steps"]
        low, high = (fewest_local_steps(job, there, least * near, most) for near in (1 - 1e-6, 1 + 1e-6))
        assert low <= min(steps, most + 1) <= high
        assert job_advice.local_steps_utilisation(job, there, steps) >= least * (1 - 1e-6)
        (cells,) = [line.split() for line in shown.splitlines() if line.startswith(f"{least:.0%} ")]
        assert int(cells[1].strip(",").replace(",", "")) == steps
        assert ("*" in cells, "needed" in cells) == (steps > 500, steps == 1)
        if steps > 500:
            rate = row["most_mbit"]
            assert rate > there.rate_mbit / 1.001 and f"for {least:.0%}, " in shown
            near = [job_advice.local_steps(job, replace(there, rate_mbit=r), least) for r in (rate / 1.01, rate)]
            assert near[0] > 500 and (near[1] <= 500 or rate == math.inf)


def test_local_steps_that_latency_forbids_are_called_so():
    shown = advise._local_steps(job_advice.models(profile_of(part_s=1e-4))[0], Network(1024, 1000, 1000.0))
    assert "for 90%, no link is enough" in shown


@pytest.mark.parametrize("workers", [2, 16])
def test_latency_in_the_recording_and_latency_that_is_given_are_the_same(workers):
    """A gather waits once, however many workers there are; a ring waits in each of its steps."""
    recorded = profile_of(part_s=1e-3)
    for row in recorded["network"]:
        rounds = 2 * (row["workers"] - 1) if row["operation"] == "all-reduce" else 1
        words = row["bytes"] / 4
        more = job_advice._more_waits(words, row["workers"]) if row["operation"] == "all-reduce" else 0
        row["seconds"] += 2e-3 * 5 * (rounds + more)
    both = job_advice.models(recorded), job_advice.models(profile_of(part_s=1e-3))
    for one, other in zip(*both, strict=True):
        given = other.iteration_s(Network(workers, 500, 5.0))
        assert one.iteration_s(Network(workers, 500)) == pytest.approx(given, rel=0.02), one.name
        handling = [model.saved(Network(workers, 500, ms))["handling"] for model, ms in ((one, 0.0), (other, 5.0))]
        assert handling[0] == pytest.approx(handling[1], abs=0.02 * given), one.name


def test_a_method_that_only_sums_works_as_long_with_any_number_of_workers():
    profile = profile_of()
    for number, row in enumerate(profile["methods"][0]["samples"]):
        row["seconds"] *= 1 + 0.5 * (number % 2)  # disturbed
    model = next(model for model in job_advice.models(profile) if model.name == "half")
    works = [model.costs(Network(workers, 1000)).sparsify.seconds for workers in (2, 8, 1024)]
    assert works[1:] == [pytest.approx(works[0])] * 2


def test_more_workers_than_a_machine_had_are_warned_of_unless_a_rate_is_given(capsys, tmp_path):
    profile = load(RECORDED)
    profile["job"]["machine"] = {"cores": 64, "workers": profile["job"]["workers"], "interfaces": None}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile))
    inside = "workers have inside one machine; if they are on several machines, give the rate"
    assert inside in answer(capsys, path, "--workers", "64")
    given = answer(capsys, path, "--workers", "64", "--link-mbit", "25000")
    assert inside not in given and "kinds of links: all links count as alike" in given
    assert inside not in answer(capsys, path)


def test_computing_does_not_limit_what_the_handling_of_bytes_limits():
    """An all-reduce that is slower than messages of as many bytes, over links that are no limit."""
    profile = profile_of(part_s=1e-3)
    for row in profile["network"]:
        if row["operation"] == "all-reduce":
            row["seconds"] *= 3
    dense = job_advice.models(profile)[0]
    assert iterations.predicted(dense, Network(2, 1e9))["limit"] == "handling"
    for model in job_advice.models(profile_of(part_s=1e-3)):  # where nothing but latency costs time
        assert model.saved(Network(8, 1e9, 50.0))["handling"] < 0.01 * model.iteration_s(Network(8, 1e9, 50.0))


def test_where_no_link_is_enough_it_says_what_limits_then():
    job_models, there = job_advice.models(profile_of(part_s=1e-4)), Network(1024, 1000, 1000.0)
    lines = [line for line in advise._inverse(job_models, there).splitlines() if "no link is enough" in line]
    assert lines and all("no link is enough: number of messages" in line for line in lines)


@pytest.mark.parametrize("profile", [profile_of(), load(RECORDED)], ids=["synthetic", "recorded"])
def test_the_order_of_obvious_cases(profile):
    job_models = job_advice.models(profile)
    sparse = next(name for name in ("sparse", "topk") if name in by_name(profile))
    slow = [row["name"] for row in job_advice.rank(job_models, Network(2, 10), 1.3)]
    assert slow.index(sparse) < slow.index("none") and slow[-1] == "none"
    fast = job_advice.rank(job_models, Network(2, math.inf), 1.3)
    assert fast[0]["name"] == "none" and all(row["gain"] <= 1 for row in fast)


def slow_to_arrive() -> dict:
    """A profile of two layers whose bias arrives after its weight. Each weight fills a bucket of DDP."""
    profile = profile_of((300_000, 10, 300_000, 10))
    profile["job"]["ddp"]["bucket_bytes"] = 2**20
    for row, arrived_s in zip(profile["parameters"], (0.009, 0.010, 0.003, 0.004), strict=True):
        row["arrived_s"] = arrived_s
    return profile


def test_a_hook_gets_layers_with_their_whole_bucket():
    profile = slow_to_arrive()
    plain, hooked = job_advice.read_job(profile), job_advice.read_job(profile, hooked=True)
    assert plain.shapes == [[300_000], [10], [300_000], [10]] and hooked.shapes == [[10], [300_000], [10], [300_000]]
    assert np.cumsum(plain.backward_s) == pytest.approx([0.003, 0.004, 0.009, 0.010])
    # A weight fills its bucket, so its bias is in the next one, and the hook's bucket of both waits for that.
    assert np.cumsum(hooked.backward_s) == pytest.approx([0.009, 0.009, 0.010, 0.010])
    assert hooked.alone_s == pytest.approx(plain.alone_s)


def test_the_script_is_predicted_with_its_own_buckets():
    profile, here = slow_to_arrive(), Network(2, 1000)
    dense, script, half, *_ = job_advice.script_models(profile)
    assert script.name == job_advice.SCRIPT and script.plans == [[(0, 1), (1, 3), (3, 4)]]
    assert half.plans == [[(0, 2), (2, 4)]]
    assert dense.iteration_s(here) <= script.iteration_s(here)
    slow = Network(2, 1000, 100.0)  # the fewest buckets are the best, if sums wait one after the other
    profile["job"]["backend"] = "nccl"
    dense, script, *_ = job_advice.script_models(profile)
    assert job_advice.bucket_mib([dense, script], slow) == 4
    profile["job"]["ddp"]["bucket_bytes"] = profile["job"]["ddp"]["first_bucket_bytes"] = 10**9
    job_models = job_advice.script_models(profile)
    assert job_models[1].plans == [[(0, 4)]] and job_advice.bucket_mib(job_models, slow) is None


@examples(1)
@given(st.floats(1e-4, 10))
def test_the_recorded_iteration_is_predicted_if_it_is_slower_than_the_model(recorded_s):
    profile = profile_of()
    profile["times"]["iteration"]["median_s"] = recorded_s
    job_models = job_advice.script_models(profile)
    explained_s = job_advice.explained_s(job_models)
    assert job_models[1].iteration_s(job_models[1].job.here) == pytest.approx(max(recorded_s, explained_s))
    assert {model.job.unexplained_s for model in job_models} == {max(0.0, recorded_s - explained_s)}


def test_the_unexplained_time_counts_as_computing_everywhere():
    profile = profile_of()
    profile["times"]["iteration"]["median_s"] = 1.0
    job_models = job_advice.script_models(profile)
    dense, job, here = job_models[0], job_models[0].job, job_models[0].job.here
    iteration_s, exchange_s = dense.iteration_s(here), job_advice.exchange_s(job, here)
    computing_s = job_advice.utilisation(dense, here) * iteration_s
    assert job.unexplained_s > 0.5 * iteration_s
    row = job_advice.local_steps_rows(job, here)[0]
    assert row["steps"] == 1 and row["cycle_s"] == pytest.approx(computing_s + exchange_s)
    used = job_advice.local_steps_utilisation(job, here, 1)
    assert used == pytest.approx(computing_s / (computing_s + exchange_s))
    text = advise._report(profile, job_models, here)
    (bar,) = re.findall("^uncompressed +(#+-*) ", text, re.M)
    assert bar.count("#") / len(bar) == pytest.approx(computing_s / iteration_s, abs=1 / advise.BAR)
    assert f"An iteration computes for {advise.ms(computing_s)} ms." in text


def test_what_a_hook_and_gloo_add_to_an_exchange():
    profile, there = profile_of(), Network(2, 1000, 5.0)
    job, sparse = job_advice.read_job(profile), profile["methods"][1]
    plain, hooked, short = (
        job_advice.JobModel(own, sparse, hooked=flag).iteration_s(there)
        for own, flag in ((job, False), (job, True), (replace(job, backend="nccl"), False))
    )
    assert hooked - plain == pytest.approx(0.010, rel=0.01)  # a sum of one word makes one round trip
    assert plain - short == pytest.approx(0.010, rel=0.01)  # a gather of more than 64 KiB has a second message
    buffers = replace(job, buffer_words=1000.0)
    for network, more_s in ((there, 0.010), (job.here, 0.0)):
        waited = [job_advice.JobModel(own, sparse).iteration_s(network) for own in (buffers, job)]
        assert waited[0] - waited[1] == pytest.approx(more_s, rel=0.01, abs=1e-6)


@pytest.mark.parametrize(("idle_cores", "part"), [(None, 0.0), (0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (30.0, 0.0)])
def test_messages_delay_computing_if_no_core_is_idle(idle_cores, part):
    """A message per layer: its processor time delays the next layers, so the last message delays none."""
    layers, there = 5, Network(2, 1000)
    idle, busy = (profile_of((1000,) * layers, part_s=1.0, idle_cores=cores) for cores in (None, idle_cores))
    before, after = (by_name(profile)["layered"].iteration_s(there) for profile in (idle, busy))
    assert after - before == pytest.approx(part * (layers - 1) * PROCESSOR_S, rel=1e-3, abs=1e-12)
    rehearsed = job_advice.script_models(busy, rehearsed=True)
    assert not any(np.any(model.costs(there).interference(np.arange(1e6, step=1e5))) for model in rehearsed)


def test_messages_do_not_delay_a_gpu():
    """The same profile of processors has three quarters of the messages' time as a delay."""
    profile = profile_of(idle_cores=0.25)
    assert job_advice.read_job(profile).delays == 0.75
    profile["job"]["device"] = "cuda"
    assert job_advice.read_job(profile).delays == 0


@pytest.mark.parametrize(("kind", "exchanges"), [("ddp", 3), ("hsdp", 3), ("horovod", 1), ("distributed", 1)])
def test_only_jobs_whose_exchanges_the_probe_counts_have_more_than_one(kind, exchanges):
    profile = profile_of()
    profile["job"] |= {"kind": kind, "passes": 5, "exchanges": 3}
    assert job_advice.read_job(profile).exchanges == exchanges


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_processor_time_grows_with_the_messages_and_bytes_of_more_workers(workers):
    job = job_advice.read_job(profile_of(idle_cores=0.0))
    curves, words = job_advice._processors(job, workers), 2.0**23
    more = workers - 1
    assert curves["message"] == job.processors["message"]
    assert curves["all-gather"](words) == pytest.approx(more * job.processors["all-gather"](words))
    bytes_s = job.processors["all-reduce"](words) - PROCESSOR_S
    assert curves["all-reduce"](words) == pytest.approx(more * PROCESSOR_S + 2 * more / workers * bytes_s)


def test_a_slower_device_broadcasts_buffers_as_fast_as_before():
    job = replace(job_advice.read_job(profile_of()), buffer_words=1000.0, unexplained_s=0.5)
    slower, broadcast_s = job_advice.slowed(job, 3.0), job_advice.recorded_broadcast_s(job)
    assert 0 < broadcast_s < job.forward_s
    assert slower.forward_s - broadcast_s == pytest.approx(3 * (job.forward_s - broadcast_s))
    assert (slower.rest_s, slower.backward_s) == (3 * job.rest_s, [3 * seconds for seconds in job.backward_s])
    assert slower.unexplained_s == 1.5


def test_a_slower_device_selects_as_much_slower_unless_it_only_waits():
    profile = profile_of()
    alike, slower, waiting = (
        np.array([model.costs(Network(2, 1000)).sparsify.seconds for model in job_advice.script_models(profile, **how)])
        for how in ({}, {"slowdown": 3.0}, {"slowdown": 3.0, "rehearsed": True})
    )
    assert slower == pytest.approx(3 * alike) and waiting == pytest.approx(alike) and alike.any()


def test_gradients_of_16_bits_are_half_the_bytes():
    words = [job_advice.read_job(profile_of(dtype=dtype)).words for dtype in ("float32", "bfloat16", "float64")]
    assert words == [1, 0.5, 2]


def test_the_interval_and_the_range_are_those_of_the_checked_cases():
    cases = pd.read_csv(ROOT / "workflow/studies/advise/checked.csv")
    assert advice.margin(cases) <= SPEEDUP_FACTOR == advice.interval(cases)
    columns = zip(CHECKED.values(), ("workers", "rate_mbit", "latency_ms", "dense_s"), strict=True)
    for bounds, column in columns:
        assert (cases[column].min(), cases[column].max()) == pytest.approx(bounds, rel=0.06)


def test_outside_the_checked_range_the_interval_is_wider_and_says_why():
    profile = profile_of(part_s=0.1)
    profile["times"]["iteration"]["median_s"] = by_name(profile)["none"].iteration_s(Network(2, 1000))
    job_models = job_advice.models(profile)
    assert job_advice.interval(job_models, Network(2, 500)) == (SPEEDUP_FACTOR, [])
    for there in (Network(5, 500), Network(2, 99), Network(2, 1001), Network(2, 500, 6)):
        factor, (reason,) = job_advice.interval(job_models, there)
        assert factor > SPEEDUP_FACTOR and "checked" in reason
    profile["job"]["device"] = "cuda"
    factor, (reason,) = job_advice.interval(job_advice.models(profile), Network(2, 500))
    assert factor > SPEEDUP_FACTOR and "GPU" in reason
    profile["job"]["device"], profile["times"]["iteration"]["median_s"] = "cpu", 10.0
    factor, (reason,) = job_advice.interval(job_advice.models(profile), Network(2, 500))
    assert factor > 10 and "recorded" in reason


@pytest.mark.parametrize(
    ("kind", "dtype", "workers", "reason"),
    [("single", "float32", 1, "a profile of one process"), ("horovod", "float32", 2, "a job with Horovod"),
     ("hsdp", "float32", 2, "a job with hybrid sharding"), ("distributed", "float32", 2, "several processes in which"),
     ("ddp", "bfloat16", 2, "gradients that are not float32")],
)  # fmt: skip
def test_a_kind_of_job_that_was_not_checked_widens_the_interval_and_says_why(kind, dtype, workers, reason):
    profile, there = profile_of(part_s=0.1, dtype=dtype, workers=workers), Network(2, 500)
    profile["times"]["iteration"]["median_s"] = by_name(profile)["none"].iteration_s(Network(2, 1000))
    profile["job"] |= {"kind": kind, "ddp": profile["job"]["ddp"] if kind == "ddp" else None}
    check(profile)
    job_models = job_advice.models(profile)
    factor, (text,) = job_advice.interval(job_models, there)
    assert factor == SPEEDUP_FACTOR**2 and text.startswith(reason)
    assert text in advise._report(profile, job_models, there)


@pytest.mark.parametrize(
    ("recorded_ms", "added_ms", "timed", "whole"),
    [
        (0.3, 4.7, True, ""),
        (5.2, 0, True, "5.2"),
        (4, 3, True, "7"),
        (0.3, 4.9, False, ""),
        (5.2, 0, False, ""),
        (30, 0, False, "30"),
    ],
)
def test_the_latency_of_the_recorded_network_counts(recorded_ms, added_ms, timed, whole):
    """Without the processors' time, whole milliseconds of the recorded latency do."""
    profile, there = profile_of(part_s=0.1), Network(2, 500, added_ms)
    for row in profile["network"]:
        row["seconds"] += 2e-3 * recorded_ms  # a round trip
        row["processor_s"] = row["processor_s"] if timed else None
    profile["times"]["iteration"]["median_s"] = by_name(profile)["none"].iteration_s(Network(2, 1000))
    _, reasons = job_advice.interval(job_advice.models(profile), there)
    assert reasons == ([f"{whole} ms of latency, where 0 to 5 were checked"] if whole else [])


@pytest.mark.parametrize(
    ("device", "threads", "machine", "shared"),
    [("cpu", 1, {"cores": 2, "workers": 2}, True), ("cpu", 4, {"cores": 8, "workers": 2}, True),
     ("cpu", 1, {"cores": 3, "workers": 2}, False), ("cpu", 2, {"cores": 2, "workers": 1}, False),
     ("cuda", 1, {"cores": 2, "workers": 2}, False), ("cpu", 1, None, False)],
)  # fmt: skip
def test_workers_that_shared_cores_are_named(device, threads, machine, shared):
    profile = profile_of()
    profile["job"] |= {"device": device, "threads": threads, "machine": machine and machine | {"interfaces": None}}
    check(profile)
    assert ("workers share cores" in advise._report(profile, job_advice.models(profile), Network(2, 500))) == shared


@pytest.mark.parametrize(("high_s", "warned"), [(0.02, True), (0.0199, False)])
def test_iterations_that_differ_by_a_factor_of_two_are_warned_of(high_s, warned):
    profile = profile_of(part_s=0.01)
    profile["times"]["iteration"]["high_s"] = high_s
    text = advise._report(profile, job_advice.models(profile), Network(2, 500))
    assert ("the recorded iterations took 10 to 20 ms" in text) == ("are uncertain" in text) == warned


@examples(1)
@given(st.integers(2, 8), st.floats(10, 10_000), st.floats(0, 10), st.floats(1e-4, 1))
def test_every_answer_outside_the_checked_range_warns_and_is_wider(workers, rate_mbit, latency_ms, part_s):
    profile, there = profile_of(part_s=part_s), Network(workers, rate_mbit, latency_ms)
    profile["times"]["iteration"]["median_s"] = by_name(profile)["none"].iteration_s(Network(2, 1000))
    job_models = job_advice.models(profile)
    values = (workers, rate_mbit, latency_ms, job_models[0].iteration_s(there))
    inside = all(low <= value <= high for (low, high), value in zip(CHECKED.values(), values, strict=True))
    text = advise._report(profile, job_models, there)
    assert ("Warning: " in text) != inside
    for row in job_advice.rank(job_models, there, SPEEDUP_FACTOR if inside else SPEEDUP_FACTOR**2):
        assert f"{row['gain']:.2f} [{row['gain_low']:.2f}, {row['gain_high']:.2f}]" in text or row["name"] == "none"


def test_a_rate_outside_the_checked_range_is_marked(capsys, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_of(part_s=0.1)))
    lines = answer(capsys, path, "--link-mbit", "500").splitlines()
    begin, end = (next(n for n, line in enumerate(lines) if line.startswith(word)) for word in ("Which", "Local"))
    text = "\n".join(line for line in lines[begin:end] if "checked" not in line)
    rates = re.findall(r"([\d.,]+) Mb/s( \*)?", text)
    assert {bool(mark) for _, mark in rates} == {True, False}
    for rate, mark in rates:
        assert bool(mark) != (100 <= float(rate.replace(",", "")) <= 1000)
    assert any(line.startswith("* Outside the rates that were checked, 100 to 1000 Mb/s") for line in lines)


@pytest.mark.parametrize(
    ("passes", "exchanges", "kind", "warned"),
    [(1, 1, "ddp", ""), (2, 1, "ddp", ""), (3, 3, "ddp", "3 of 3 passes of a recorded step exchanged gradients"),
     (1, None, "ddp", ""), (2, None, "ddp", "1 or more of 2 passes"),
     (1, None, "horovod", ""), (2, None, "horovod", "HorovodHook would exchange in each of the 2 passes")],
)  # fmt: skip
def test_passes_that_all_exchange_are_named_and_widen_the_interval(passes, exchanges, kind, warned):
    profile, there = profile_of(part_s=0.1), Network(2, 500)
    profile["times"]["iteration"]["median_s"] = by_name(profile)["none"].iteration_s(Network(2, 1000))
    profile["job"] |= {"passes": passes, "exchanges": exchanges, "kind": kind}
    if kind != "ddp":
        profile["job"]["ddp"] = None
    check(profile)
    job_models = job_advice.models(profile)
    text, (factor, reasons) = advise._report(profile, job_models, there), job_advice.interval(job_models, there)
    assert warned in text and any("passes" in reason for reason in reasons) == bool(warned)
    assert (factor > SPEEDUP_FACTOR) == ("Warning" in text) == bool(warned or kind != "ddp")
    assert ("30 steps of 2 passes" in text) == (passes == 2)


def test_few_recorded_steps_are_named():
    profile = profile_of()
    for steps, warned in ((9, True), (10, False)):
        profile["job"]["steps"] = steps
        text = advise._report(profile, job_advice.models(profile), Network(2, 500))
        assert f"{steps} steps" in text and (f"Warning: steps: {steps} recorded" in text) == warned


def test_methods_that_the_probe_left_out_are_listed_with_the_reason():
    profile = profile_of()
    profile["left_out"] |= {"other": "it exchanges weights after local steps", "broken": "ValueError:\nno"}
    text = advise._report(profile, job_advice.models(profile), Network(2, 500))
    listed = "local, other (it exchanges weights after local steps); broken (ValueError: no)"
    assert f"The probe did not measure: {listed}." in text.splitlines()
    assert "did not measure" not in advise._report(profile, job_advice.models(profile, ["sparse"]), Network(2, 500))


def test_the_verdict_comes_first_and_names_few_methods():
    profile = profile_of()
    profile["methods"] = [profile["methods"][1] | {"name": f"m{n}", "title": f"M{n}"} for n in range(7)]
    lines = advise._report(profile, job_advice.models(profile), Network(2, 10)).splitlines()
    verdict, table = (next(n for n, line in enumerate(lines) if word in line) for word in ("ompressing", "Speed-up"))
    assert verdict < table
    (tied,) = [line for line in lines if "cannot be distinguished" in line]
    assert tied.endswith(": M0; M1; M2; M3; and 3 more.")


def test_a_slow_method_does_not_make_all_other_bars_short():
    rows = [
        {"name": job_advice.UNCOMPRESSED, "label": "uncompressed", "iteration_s": 0.1},
        {"name": "lags", "label": "LAGS", "iteration_s": 5.0},
    ]
    _, dense, cut, note = advise.bars(rows, 0.05).splitlines()
    assert abs(dense.count("#") - dense.count("-")) <= 1 and dense.count("#") > advise.BAR / 4
    assert ">> 5,000" in cut and len(cut.split()[1]) == advise.BAR and note.startswith(">>")
    assert ">>" not in advise.bars(rows[:1], 0.05)


def test_only_the_fastest_methods_have_a_bar():
    many = [{"name": f"m{n}", "label": f"M{n}", "iteration_s": 0.1 + n / 1000} for n in range(advise.MOST_BARS + 3)]
    rows = [*many, {"name": job_advice.UNCOMPRESSED, "label": "uncompressed", "iteration_s": 0.2}]
    _, *drawn, last = advise.bars(rows, 0.05).splitlines()
    assert [line.split()[0] for line in drawn] == [f"M{n}" for n in range(advise.MOST_BARS)] + ["uncompressed"]
    assert last == "Methods without a bar, because they are slower: 3."


@pytest.mark.parametrize(("workers", "inside"), [(2, True), (1, False)])
def test_links_inside_one_machine_are_named(workers, inside):
    profile = profile_of()
    profile["job"]["machine"] = {"cores": 4, "workers": workers, "interfaces": None}
    check(profile)
    text = advise._report(profile, job_advice.models(profile), Network(2, 500))
    assert ("so these links are inside it" in text) == inside


def test_local_steps_that_are_not_needed_are_called_so(capsys):
    for rate, unneeded in (("1e9", 3), ("1", 0)):
        assert answer(capsys, RECORDED, "--link-mbit", rate).count("1, not needed") == unneeded


def test_the_rate_for_a_speed_up_can_be_asked_for(capsys):
    text = answer(capsys, RECORDED, "--methods", "topk", "--speed-up", "1.2")
    assert "1.2 times as fast below" in text and "Pays below" not in text
    dense, *_, topk = job_advice.script_models(load(RECORDED), ["topk"])
    rate = break_even_mbit(dense, topk, dense.job.here, 1.2)
    (row,) = [line for line in text.splitlines() if line.startswith("Top-K") and "Mb/s" in line]
    assert advise.mbit(rate) in row
    network = replace(dense.job.here, rate_mbit=rate)
    assert dense.iteration_s(network) / topk.iteration_s(network) == pytest.approx(1.2, rel=0.01)
    (inverse,) = job_advice.inverse([dense, topk], dense.job.here, 1.2)[1:]
    assert inverse["faster_below_mbit"] == rate > inverse["interval_below_mbit"]


def test_a_method_that_pays_over_fast_links_only_is_not_said_to_pay_below_a_rate(capsys):
    """With many workers a gather sends more bytes than a ring, and waits less often."""
    path = next(path for path in KEPT_PROFILES if path.stem == "resnet50-ddp")
    asked = ("--methods", "topk", "--workers", "256", "--latency-ms", "1", "--link-mbit", "100")
    row = [line for line in answer(capsys, path, *asked).splitlines() if line.startswith("Top-K")][-1]
    assert "any" not in row and "never" in row
    (rate,) = (float(rate.replace(",", "")) for rate in re.findall(r"only above ([\d,]+) Mb/s", row))
    dense, *_, topk = job_advice.script_models(load(path), ["topk"])
    slow, fast = (Network(256, rate * factor, 1.0) for factor in (0.9, 1.1))
    assert dense.iteration_s(slow) < topk.iteration_s(slow) and topk.iteration_s(fast) < dense.iteration_s(fast)


KEPT_PROFILES = sorted((ROOT / "results/reference-profiles/recorded").glob("*.json"))


@pytest.mark.parametrize("path", [RECORDED, *KEPT_PROFILES], ids=lambda path: path.stem)
@pytest.mark.parametrize("latency_ms", [0, 20])
def test_below_the_rate_of_the_whole_interval_the_interval_excludes_no_gain_whatever_rate_was_asked(path, latency_ms):
    """Most kept profiles have rates at which the interval is narrow, so that the wide one alone would say less."""
    dense, *others = job_advice.script_models(load(path), ["topk"])
    topk = others[-1]
    found = [job_advice.inverse([dense, topk], Network(2, asked, latency_ms))[-1] for asked in (10, 1000, 1e5)]
    assert found[0] == found[1] == found[2]
    below = found[0]["interval_below_mbit"]
    assert 0 < below <= found[0]["faster_below_mbit"]
    for rate in below * np.array([0.01, 0.1, 0.3, 0.6, 0.9, 0.97, 1.03]):
        there = Network(2, float(rate), latency_ms)
        gain = dense.iteration_s(there) / topk.iteration_s(there)
        above = gain > job_advice.interval([dense, topk], there)[0]
        assert above or rate > below
        if rate > below and latency_ms:
            assert not above


def answer(capsys, *arguments) -> str:
    assert advise.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_megabits_and_gigabytes_are_the_same_rate(capsys):
    given = [answer(capsys, RECORDED, "--workers", "8", *link) for link in
             (("--link-mbit", "96000"), ("--link-gbyte-s", "12"))]  # fmt: skip
    assert given[0] == given[1] and "96,000 Mb/s" in given[0] and "Warning: " in given[0]


def test_chosen_methods_are_compared_with_the_baselines(capsys):
    text = answer(capsys, RECORDED, "--methods", "topk")
    assert all(title in text for title in ("uncompressed", "16 bits", "Top-K")) and "PowerSGD" not in text
    for part in ("Which links 2 workers need", "Local steps", "Limits of the estimate", "times as fast as"):
        assert part in text
    assert "the script's buckets" in text
    (tied,) = [line for line in text.splitlines() if "cannot be distinguished" in line]
    assert "Top-K" in tied and "uncompressed" in tied  # over fast links, all take as long as computing


def test_it_says_how_well_the_fastest_method_learnt_in_the_kept_runs(capsys):
    text = answer(capsys, RECORDED, "--methods", "dlgs", "--link-mbit", "100")
    (reached,) = [line for line in text.splitlines() if "this method reached" in line]
    (run,) = [run for run in trained.runs("dlgs", {"ratio": 0.01}) if run.model == "VGG16"]
    assert f"VGG16, accuracy {run.text}" in reached and text.count(run.text) == 2  # and once in the table
    assert trained.runs("dlgs", {"ratio": 0.01, "refresh_every": 8}) == trained.runs("dlgs", {"ratio": 0.05}) == []


def test_without_kept_runs_of_its_methods_the_advice_has_no_table_of_them(capsys, monkeypatch):
    monkeypatch.setattr(trained, "runs", lambda method, options: [])
    assert "project's runs" not in answer(capsys, RECORDED)


refused = partial(refused_by, advise, "dlgs-bench advise")


@pytest.mark.parametrize(
    "options",
    [
        *(("--workers", value) for value in ("1", "0", "-3", "2.5", "many", "1e7", "nan")),
        *(
            (link, value)
            for link in ("--link-mbit", "--link-gbyte-s")
            for value in ("0", "-1", "inf", "nan", "fast", "")
        ),
        *(("--latency-ms", value) for value in ("-1", "inf", "nan")),
        *(("--speed-up", value) for value in ("0.9", "nan", "more")),
        ("--link-mbit", "1", "--link-gbyte-s", "1"),
        ("--methods", "tokp"),
        ("--methods", ""),
        ("--figure", "advice.png"),
        ("--figure", "/nowhere/advice.svg"),
        ("--inverted",),
    ],
    ids=" ".join,
)
def test_a_bad_option_is_one_line(capsys, options):
    refused(capsys, RECORDED, *options)


def without(row: dict, key: str) -> dict:
    return {name: value for name, value in row.items() if name != key}


def changed(*way, **values):
    """A change of a profile: the entry at path ``way`` gets these ``values``; a value of None deletes its key."""

    def change(profile: dict) -> str:
        place = profile
        for step in way:
            place = place[step]
        for key, value in values.items():
            if value is None:
                del place[key]
            else:
                place[key] = value
        return json.dumps(profile)

    return change


GOOD = RECORDED.read_text()
EMPTY = [{"shape": [0, 3], "dtype": "float32", "arrived_s": 0.001}]
LATE = [{"shape": [3], "dtype": "float32", "arrived_s": None}]
STILL = {part: {"median_s": 0, "low_s": 0, "high_s": 0} for part in PARTS}
# What is wrong -> the text of the file, or a change of a good profile; and a part of the line that says so.
BAD_PROFILES = {
    "empty file": ("", "is not valid JSON"),
    "cut file": (GOOD[: len(GOOD) // 2], "the file may be cut off"),
    "last brace missing": (GOOD.rstrip().removesuffix("}"), "the file may be cut off"),
    "not JSON": ("format: dlgs-bench profile", "is not valid JSON"),
    "not text": (b"\x80\x03}q\x00", "is not text"),
    "compressed": (gzip.compress(GOOD.encode()), "is not text; if it is compressed, unpack it"),
    "nested too deeply": ("[" * 10**5, "nested too deeply"),
    "a list": ("[]", "format: [] is not 'dlgs-bench profile', so this is not a profile; give"),
    "null": ("null", "format: None is not 'dlgs-bench profile'"),
    "another file": ('{"spec": {}, "files": {}}', "format: None is not 'dlgs-bench profile'"),
    "newer version": (changed(version=6), "version: 6 is not 5"),
    "version as text": (changed(version="1"), "version: '1' is not 5"),
    "no version": (changed(version=None), "version: None is not 5"),
    "a key of version 3 missing": (
        lambda profile: json.dumps(profile_of() | {"job": profile["job"] | {"ddp": dict(DDP_DEFAULTS)}}),
        "job: the key exchanges is missing",
    ),
    "a key of version 4 missing": (
        lambda profile: json.dumps(
            profile_of() | {"job": profile_of()["job"] | {"machine": {"cores": 1, "workers": 2}}}
        ),
        "job.machine: the key interfaces is missing",
    ),
    "a key of version 5 missing": (
        lambda profile: json.dumps(
            profile_of() | {"network": [without(row, "processor_s") for row in profile["network"]]}
        ),
        "network[0]: the key processor_s is missing",
    ),
    "a key of version 2 missing": (changed(version=2), "job: the key ddp is missing"),
    "DDP without its settings": (
        lambda profile: json.dumps(profile | {"version": 2, "job": profile["job"] | {"ddp": None}}),  # and no machine
        "job.ddp: None is not valid for a job of kind ddp",
    ),
    "NaN": (changed("times", "backward", median_s=math.nan), "it contains NaN, which no probe writes; record it again"),
    "infinity": (changed("times", "backward", median_s=math.inf), "it contains Infinity, which no probe writes"),
    "a number beyond floats": (GOOD.replace('"median_s": ', '"median_s": 1e999, "_": ', 1), "inf is not a finite"),
    "negative time": (changed("times", "forward", median_s=-0.1), "times.forward.median_s: -0.1 is less than 0"),
    "gradient before backward": (changed("parameters", 0, arrived_s=-1e-3), "parameters[0].arrived_s: -0.001 is less"),
    "time as text": (changed("times", "loss", low_s="1 ms"), "times.loss.low_s: '1 ms' is not of type number"),
    "true as a number": (changed("job", steps=True), "job.steps: True is not of type integer"),
    "list instead of object": (changed(times=[]), "times: [] is not of type object"),
    "key missing": (changed(methods=None), "profile: the key methods is missing"),
    "part missing": (changed("times", optimizer=None), "times: the key optimizer is missing"),
    "unknown key": (changed("job", gpus=8), "'job.gpus': the key is not known"),
    "unknown type of gradients": (changed("parameters", 0, dtype="int8"), "parameters[0].dtype: 'int8' is not"),
    "fractional size": (changed("parameters", 0, shape=[1.5]), "parameters[0].shape[0]: 1.5 is not of type integer"),
    "no parameters": (changed(parameters=[]), "parameters: the list is empty"),
    "empty tensors": (changed(parameters=EMPTY), "parameters: they have no entry"),
    "no gradients": (changed(parameters=LATE), "parameters: no gradient arrived"),
    "no computing": (changed(times=STILL, parameters=[EMPTY[0] | {"shape": [3], "arrived_s": 0}]), "computing takes 0"),
    "no workers": (changed("job", workers=0), "job.workers: 0 is less than 1"),
    "other world size": (changed("job", workers=3), "network[0].workers: 2 is not job.workers, which is 3"),
    "no network": (changed(network=[]), "network: all-gather, all-reduce, message is missing for 2 workers"),
    "free message": (changed("network", 0, seconds=0), "network[0].seconds: 0 is not greater than 0"),
    "unknown scope": (changed("methods", 0, scope="all"), "methods[0].scope: 'all' is not model or"),
    "title of two lines": (changed("methods", 0, title="a\nb"), r"methods[0].title: 'a\nb' is not one line of text"),
    "half a character": (changed("job", device_name="\ud800"), "job.device_name: '\\ud800' is not one line of text"),
    "network of one worker": (
        json.dumps(profile_of(workers=1) | {"network": [row | {"workers": 1} for row in network_rows(2, 100.0)]}),
        "network: one worker has no network",
    ),
    "method without samples": (changed("methods", 0, samples=[]), "methods[0].samples: the list is empty"),
}


def test_profiles_of_older_packages_are_read(tmp_path):
    """Each version lacks what the later ones added, and that is unknown; everything else stays."""
    made = profile_of()
    made["job"] |= {"versions": {"torch": "2.11.0", "nccl": "2.27", "horovod": "0.28"}, "passes": 2}
    made["job"]["machine"]["interfaces"] = [{"name": "eth0", "mbit": 25000}]
    path = tmp_path / "profile.json"
    made["network"] = [row | {"processor_s": None} for row in made["network"]]
    for version in (5, 4, 3, 2, 1):
        path.write_text(json.dumps(made | {"version": version}))
        read = load(path)
        assert read == made | {"version": VERSION, "job": read["job"], "network": read["network"]}
        assert {row["processor_s"] for row in read["network"]} == {None}
        text = advise._report(read, job_advice.models(read), Network(2, 500))
        assert ("eth0 25,000 Mb/s" in text) == (version > 3)
        assert ("1 or more of 2 passes" in text) == (version < 3)
        job = made["job"]
        unknown = [read["job"]["versions"]["nccl"], read["job"]["exchanges"], read["job"]["machine"]]
        assert [value is None for value in unknown] == [version < 4, version < 3, version < 2]
        assert read["job"]["ddp"] == DDP_DEFAULTS and read["job"]["idle_cores"] is None
        if version == 5:
            del job["idle_cores"]
            for row in made["network"]:
                del row["processor_s"]
        elif version == 4:
            del job["machine"]["interfaces"], job["versions"]["nccl"], job["versions"]["horovod"]
        elif version == 3:
            del job["exchanges"]
        elif version == 2:
            del job["machine"], job["ddp"]


def test_advice_from_hybrid_sharding_is_about_the_exchange_between_replicas():
    profile = profile_of()
    profile["job"] |= {"kind": "hsdp", "ddp": None, "passes": 2, "exchanges": 2}
    check(profile)
    text = advise._report(profile, job_advice.script_models(profile), Network(4, 500))
    assert "a worker is one replica" in text and "2 of 2 passes of a recorded step exchanged" in text
    assert "replica" not in advise._report(profile_of(), job_advice.models(profile_of()), Network(4, 500))


@pytest.mark.parametrize("kind", BAD_PROFILES)
def test_a_bad_profile_is_one_line(capsys, tmp_path, kind):
    wrong, expected = BAD_PROFILES[kind]
    path = tmp_path / "profile.json"
    text = wrong(json.loads(GOOD)) if callable(wrong) else wrong
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    line = refused(capsys, path)
    assert line.startswith(f"dlgs-bench advise: {path}: ") and expected in line


def test_a_file_that_cannot_be_read_is_one_line(capsys, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, why in ((tmp_path / "gone", "No such file"), (tmp_path, "Is a directory"), (loop, "symbolic links")):
        line = refused(capsys, path)
        assert line.startswith(f"dlgs-bench advise: {path}: cannot be read: ") and why in line


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_an_editor_may_store_a_profile_in_another_encoding(capsys, tmp_path, encoding):
    (tmp_path / "profile.json").write_bytes(GOOD.encode(encoding))
    assert "uncompressed" in answer(capsys, tmp_path / "profile.json")


def test_a_named_pipe_that_nobody_writes_to_is_one_line(capsys, tmp_path):
    os.mkfifo(tmp_path / "profile.json")
    assert "is not valid JSON" in refused(capsys, tmp_path / "profile.json")


def test_names_of_methods_may_have_spaces_around_them_and_a_misspelt_one_is_named(capsys):
    assert "PowerSGD" in answer(capsys, RECORDED, "--methods", " topk, powersgd ,topk")
    for name in ("tokp", "Top-K"):  # tables show titles
        said = refused(capsys, RECORDED, "--methods", name)
        assert f"{name!r} is not in the profile (did you mean 'topk'?)" in said
    assert "without a unit, such as 10000" in refused(capsys, RECORDED, "--link-mbit", "10G")


def test_a_profile_of_one_process_needs_workers_and_a_rate(capsys, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_of(workers=1)))
    assert "give --workers and --link-mbit" in refused(capsys, path)
    assert refused(capsys, path, "--link-mbit", "1000").endswith("give --workers\n")
    assert "--link-mbit" in refused(capsys, path, "--workers", "4")
    assert "one process" in answer(capsys, path, "--workers", "4", "--link-mbit", "1000")
    assert "left it out" in refused(capsys, path, "--methods", "local")


def numbers(value, at=()):
    """The place of every number in nested lists and dicts."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, int | float) and not isinstance(item, bool):
            yield (*at, key)
        yield from numbers(item, (*at, key))


@examples(1)
@given(st.data())
def test_an_extreme_number_gives_an_answer_or_one_line(tmp_path_factory, data):
    profile = copy.deepcopy(load(RECORDED))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, key = data.draw(st.sampled_from(list(numbers(profile))))
        holder = profile
        for step in way:
            holder = holder[step]
        extremes = [1, 3, 10**15] if isinstance(holder[key], int) else [0.0, 1e-300, 1e15]
        holder[key] = data.draw(st.sampled_from(extremes))
    path = tmp_path_factory.mktemp("extreme") / "profile.json"
    path.write_text(json.dumps(profile))
    out = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(out):
        warnings.simplefilter("error")
        status = advise.main([str(path), "--link-mbit", str(data.draw(st.sampled_from([1e-6, 100.0, 1e9])))])
    assert status in (0, 2) and not re.search(r"\b(nan|inf)\b", out.getvalue())


def test_the_figure_is_an_svg_file(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    assert "The figure is in" in answer(capsys, RECORDED, "--figure", tmp_path / "advice.svg")
    assert (tmp_path / "advice.svg").read_text().rstrip().endswith("</svg>")


def test_the_figure_ignores_the_settings_of_a_user(tmp_path):
    """LaTeX is the most common setting, and it is not installed everywhere."""
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"text.usetex": True}):
        models = job_advice.models(load(RECORDED), ["topk"])
        figure_file.write(tmp_path / "advice.svg", lambda: advise.draw(models, Network(2, 500)), "A caption.")
        assert matplotlib.rcParams["text.usetex"]
    assert (tmp_path / "advice.svg").exists()


def test_a_figure_that_cannot_be_written_is_one_line_and_nothing_is_lost(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    (tmp_path / "folder.svg").mkdir()
    assert "is a folder" in refused(capsys, RECORDED, "--figure", tmp_path / "folder.svg")

    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(figure_file, "write_atomically", full)
    assert advise.main([str(RECORDED), "--figure", str(tmp_path / "a.svg")]) == 2
    out, err = capsys.readouterr()
    assert "uncompressed" in out and err.endswith("a.svg: No space left on device; give another file\n")


def test_it_works_with_the_packages_of_the_wheel(tmp_path):
    script = (
        "import sys\n"
        "for name in ('pandas', 'torch', 'matplotlib', 'scipy', 'yaml', 'snakemake'): sys.modules[name] = None\n"
        "from dlgs_bench.cli import main\n"
        f"assert main(['advise', {str(RECORDED)!r}, '--link-mbit', '100']) == 0\n"
        f"sys.exit(main(['advise', {str(RECORDED)!r}, '--figure', 'a.svg']))\n"
    )
    call = [sys.executable, "-c", script]
    done = subprocess.run(call, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert done.returncode == 2 and "Compressing pays" in done.stdout, done.stderr
    assert done.stderr.splitlines() == [
        "dlgs-bench advise: --figure: matplotlib is not installed; install it, or leave --figure out"
    ]


def test_a_terminal_that_lacks_a_character_shows_its_number(tmp_path):
    profile = json.loads(GOOD)
    profile["job"]["device_name"] = "\u5904\u7406\u5668"
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    call = [sys.executable, "-m", "dlgs_bench.cli", "advise", str(tmp_path / "profile.json"), "--methods", "topk"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(call, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0 and r"\u5904\u7406\u5668" in done.stdout, done.stderr


def documented(language: str) -> str:
    """The first block of code in this language in the document."""
    text = (ROOT / "docs" / "own-network.md").read_text()
    return text.partition(f"```{language}\n")[2].partition("```")[0]


def test_the_documented_lines_record_a_profile_that_the_documented_commands_read(capsys, tmp_path, monkeypatch):
    import torch

    from dlgs_bench import plugins

    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(34):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()

    monkeypatch.chdir(tmp_path)
    chosen = {"methods": ["cast", "powersgd", "topk"]}  # the others take longer
    monkeypatch.setattr(plugins, "names", lambda kind: chosen[kind])
    exec(
        compile(documented("python"), "own-network.md", "exec"),
        {"model": model, "optimizer": optimizer, "train": train},
    )
    reported = [line for line in capsys.readouterr().err.splitlines() if line.startswith("record: ")]
    assert reported[-1] == "record: profile.json is written: 30 of 30 steps recorded, 3 methods measured"
    first, *others = documented("sh").splitlines()
    assert "--workers" in refused(capsys, *first.split()[2:])  # it was recorded in one process
    for line in others:
        program, command, *arguments = line.split()
        assert (program, command) == ("dlgs-bench", "advise") and "uncompressed" in answer(capsys, *arguments)


def test_the_documented_verdict_is_the_programs(capsys):
    text = (ROOT / "docs" / "own-network.md").read_text().replace("\n> ", " ")
    assert (
        next(line for line in answer(capsys, RECORDED, "--link-mbit", "100").splitlines() if "ompressing" in line)
        in text
    )
