"""A rehearsal: its ranks wait as long as the job computed, and their exchanges are real."""

from functools import partial

import pytest
from support import ROOT, refused_by

from dlgs_bench import rehearse
from dlgs_bench.testbed import testbed
from dlgs_bench.timemodel import job_advice
from dlgs_bench.timemodel.job_profile import load
from dlgs_bench.timemodel.links import Network
from dlgs_bench.training import rehearsal

RECORDED = ROOT / "tests" / "recorded_profile.json"
THERE = Network(2, 1000.0)


@pytest.mark.engine
@pytest.mark.slow
def test_two_ranks_wait_as_long_as_the_job_computes_and_exchange(worlds):
    job_models = job_advice.models(load(RECORDED), ["topk"], slowdown=2.0)
    job = job_models[0].job
    assert job.alone_s == pytest.approx(2 * job_advice.read_job(load(RECORDED)).alone_s)
    one, other = worlds(rehearse.ENGINE).run(rehearsal.rehearse, rehearse.request(job_models, THERE, 2))
    assert [row["seconds"] for row in one] == [row["seconds"] for row in other]  # of the slowest
    assert [(row["method"], row["block"]) for row in one] == [(m.name, b) for b in (1, 2) for m in job_models]
    assert all(row["seconds"] >= job.alone_s * (1 - 1e-9) for row in one)
    sent = {row["method"]: row["sent_bytes"] for row in one}
    dense = 4 * sum(job.sizes)
    assert (sent["none"], sent["cast"]) == (dense, dense // 2) and 0 < sent["topk"] < dense / 10


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
    for title in ("uncompressed", "16 bits", "Top-K"):
        (line,) = [line for line in text.splitlines() if line.startswith(title)]
        assert "[" in line
    assert "2 workers of this machine, over links of 400 Mb/s" in text and "which is 3 times the computing" in text
