"""A rehearsal: its ranks wait as long as the job computed, and their exchanges are real."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from itertools import takewhile
from types import SimpleNamespace

import pytest
from support import ROOT, refused_by

from dlgs_bench import advise, rehearse
from dlgs_bench.testbed import testbed
from dlgs_bench.timemodel import job_advice
from dlgs_bench.timemodel.job_profile import load
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.timeline import schedule
from dlgs_bench.training import rehearsal

RECORDED = ROOT / "tests" / "recorded_profile.json"
THERE = Network(2, 1000.0)


def models_of(profile: dict, slowdown: float = 1.0) -> list[job_advice.JobModel]:
    return job_advice.script_models(profile, ["topk"], slowdown, rehearsed=True)


def with_buffers() -> dict:
    """A profile whose script broadcasts buffers, and has buckets of its own."""
    profile = load(RECORDED)
    profile["job"]["ddp"] = {"first_bucket_bytes": 2**16, "bucket_bytes": 2**20, "buffer_bytes": 2**16}
    return profile


@pytest.mark.engine
@pytest.mark.slow
def test_two_ranks_wait_as_long_as_the_job_computes_and_exchange(worlds):
    job_models = models_of(with_buffers(), slowdown=2.0)
    job = job_models[0].job
    broadcast_s = job_advice.recorded_broadcast_s(job)
    explained_s = 2 * job_advice.read_job(load(RECORDED)).alone_s - broadcast_s
    assert job.alone_s == pytest.approx(explained_s + job.unexplained_s)
    request = rehearse.request(job_models, THERE, 2)
    sparse = next(method for method in request["methods"] if method["row"] == "topk")
    in_turns = {"row": "in turns", "name": "sparse_dense", "options": {"sparse_steps": 1, "ratio": 0.01}}
    request["methods"].append(sparse | in_turns)  # a sparse step, then a dense step
    one, other = worlds(rehearse.ENGINE).run(rehearsal.rehearse, request)
    assert [row["seconds"] for row in one] == [row["seconds"] for row in other]  # of the slowest
    assert [(row["row"], row["block"]) for row in one] == [
        (m.name, b) for b in (1, 2) for m in [*job_models, SimpleNamespace(name="in turns")]
    ]
    waits_s = request["forward_s"] + sum(job.backward_s) + request["rest_s"]
    assert all(row["seconds"] >= waits_s * (1 - 1e-9) for row in one)
    sent = {row["row"]: row["sent_bytes"] for row in one}
    dense = 4 * sum(job.sizes)
    flag_bytes = 4 * (1 + len(job.sizes))  # of hooks: whether all gradients are finite, and which layers are used
    assert (sent["none"], sent["script"], sent["cast"]) == (dense, dense, dense // 2 + flag_bytes)
    assert 0 < sent["topk"] < dense / 10 and dense / 2 < sent["in turns"] < dense / 2 + dense / 10


@pytest.mark.unit
@pytest.mark.parametrize("slowdown", [1.0, 3.0])
def test_what_is_rehearsed_takes_as_long_as_the_advice_says(slowdown):
    """The request's waits, order of layers and plans, scheduled with the costs of the advice, give its iterations."""
    there = Network(4, 100.0, 1.0)
    job_models = models_of(with_buffers(), slowdown)
    request = rehearse.request(job_models, there, 1)
    advised = {row["name"]: row["iteration_s"] for row in job_advice.rank(job_models, there, 1.0)}
    assert [method["row"] for method in request["methods"]] == [model.name for model in job_models]
    job, own = job_models[0].job, models_of(with_buffers())
    assert request["forward_s"] == pytest.approx(slowdown * rehearse.request(own, there, 1)["forward_s"])
    broadcast_s = float(job_advice.projected(job, there)["message"](request["buffer_entries"]))
    for model, method, unslowed in zip(job_models, request["methods"], own, strict=True):
        costs = replace(
            model.costs(there), forward_s=request["forward_s"] + broadcast_s, backward_s=method["backward_s"]
        )
        sizes = [math.prod(shape) for shape in method["shapes"]]
        took_s = schedule(sizes, costs, method["plan"]).iteration_s + request["rest_s"]
        assert took_s == pytest.approx(advised[method["row"]])
        assert method["hooked"] == (method["name"] != "none")
        assert costs.latency(1.0) > 0  # the flag of a hook, or what Gloo's sums wait for together
        assert costs.sparsify == unslowed.costs(there).sparsify  # this machine selects as fast as ever


@pytest.mark.unit
def test_measured_stands_next_to_the_rows_of_the_advice(capsys, monkeypatch, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(with_buffers()))
    options = [str(path), "--workers", "3", "--link-mbit", "100", "--methods", "dlgs,topk"]
    assert advise.main(options) == 0
    advised = capsys.readouterr().out.partition("\nMethod ")[2].splitlines()[2:]

    def measured(job_models, there, blocks):
        return [{"row": m.name, "block": 1, "seconds": 2 * m.iteration_s(there), "sent_bytes": 0} for m in job_models]

    monkeypatch.setattr(testbed, "why_unavailable", lambda *links: None)
    monkeypatch.setattr(rehearse, "_measured", measured)
    assert rehearse.main(options) == 0
    rows = list(takewhile(bool, capsys.readouterr().out.splitlines()[2:]))
    assert len(rows) == 5
    for row, line in zip(rows, advised, strict=False):
        label, predicted_ms, _, ratio, _ = re.split(r"  +", row)
        assert re.split(r"  +", line)[:2] == [label, predicted_ms] and ratio == "2.00"


refused = partial(refused_by, rehearse, "dlgs-bench rehearse")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--slowdown", "0"], "'0' is not a factor"),
        (["--slowdown", "nan"], "'nan' is not a factor"),
        (["--blocks", "0"], "'0' is not a whole number from 1"),
        (["--blocks", "1.5"], "'1.5' is not a whole number from 1"),
        (["--workers", "64"], "64 is more than one machine rehearses; give at most 32"),
        (["--link-mbit", "25000"], "25000 is not a rate that the testbed can shape, 1 to 4000"),
        (["--link-mbit", "100"], "no testbed here: namespaces are forbidden"),
        (["--methods", "tokp"], "'tokp' is not in the profile"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_rehearsed_is_one_line(capsys, monkeypatch, options, why):
    monkeypatch.setattr(testbed, "why_unavailable", lambda *links: "namespaces are forbidden")
    assert why in refused(capsys, RECORDED, *options)


@pytest.mark.unit
def test_gradients_of_16_bits_are_refused(capsys, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(RECORDED.read_text().replace('"float32"', '"bfloat16"'))
    assert "not all are float32" in refused(capsys, path, "--link-mbit", "100")


@pytest.mark.root
@pytest.mark.slow
def test_a_profile_is_rehearsed_over_slowed_links(capsys):
    if testbed.why_unavailable():
        pytest.skip(f"no testbed here: {testbed.why_unavailable()}")
    options = ["--workers", "2", "--link-mbit", "400", "--methods", "topk", "--slowdown", "3", "--blocks", "3"]
    assert rehearse.main([str(RECORDED), *options]) == 0
    text = capsys.readouterr().out
    for title in ("uncompressed ", "uncompressed, the script's", "16 bits", "Top-K"):
        (line,) = [line for line in text.splitlines() if line.startswith(title)]
        assert "[" in line
    assert "2 workers of this machine, over links of 400 Mb/s" in text and "with the slowdown of 3" in text
    assert "that the time model does not explain" in text
