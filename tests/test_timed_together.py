"""A timing run of several variants: in turns, each as if it had been timed alone."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import CPU
from test_server import Images

from dlgs_bench import checksums
from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange.driver import WorkerExchange
from dlgs_bench.fingerprint import ROOT, behind_run
from dlgs_bench.report.load_runs import read_members
from dlgs_bench.report.summary import MEASURED, summarise
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training import timed
from dlgs_bench.training.session import Session
from dlgs_bench.training.timed import timing

pytestmark = pytest.mark.unit

OPTIONS = {"ratio": 0.1, "selection": "compiled"}
BESIDE = {
    "cast": {"method": "cast", "options": {}},
    "often": {"method": "dlgs", "options": {"ratio": 0.02, "refresh_every": 4}},
}
SCHEME = Scheme(timed_with={"topk-0.1": {"method": "topk", "variant": "", "options": OPTIONS}} | BESIDE)
SPEC = RunSpec("timing", Training("resnet20", batch=4), SCHEME, Cluster(workers=2), Measurement(blocks=2, repeats=1))


@pytest.fixture(scope="module")
def reports() -> list[tuple[int, int]]:
    return []


@pytest.fixture(scope="module")
def batches() -> list[int]:
    """The step of every batch that a worker has drawn."""
    return []


@pytest.fixture(scope="module")
def tables(reports, batches) -> dict:
    class Counted(Images):
        def batch(self, step, shard):
            batches.append(step)
            return super().batch(step, shard)

    def work(comm):
        report = (lambda *progress: reports.append(progress)) if comm.rank == 0 else lambda *progress: None
        return timing(SPEC, comm, Counted() if comm.rank == 0 else Images(), CPU, report, LaunchSettings())

    return run_workers(2, work)[0]


def test_every_block_times_every_variant_in_every_phase(tables):
    turns = [(row["block"], row["variant"], row["phase"], row["share"]) for row in tables["iterations"]]
    others = [("cast", "step", 1), ("often", "refresh", 1 / 4), ("often", "reuse", 3 / 4)]
    assert turns == [(b, *turn) for b in (1, 2) for turn in [("none", "step", 1), ("topk-0.1", "step", 1), *others]]
    sent = {row["variant"]: row["sent_bytes"] for row in tables["iterations"]}
    assert sent["none"] == 2 * sent["cast"] and sent["topk-0.1"] < sent["cast"]


def test_each_block_times_later_steps(tables):
    """Otherwise a method that draws its entries by the step, such as Random-k, would draw the same entries again."""
    steps = {label: [row["step"] for row in tables["iterations"] if row["variant"] == label] for label in SPEC.members}
    assert len(steps) == 4 and all(own == sorted(set(own)) for own in steps.values())


def test_links_are_set_again_after_each_block_but_the_last(monkeypatch):
    class Links:
        slowdown, seen = 0.0, []

        def __init__(self, session):
            pass

        def follow(self, least_s=0.0):
            self.seen.append(least_s)
            self.slowdown += 1

    monkeypatch.setattr(timed, "ProportionalLinks", Links)
    spec = replace(SPEC, cluster=Cluster(workers=1), measurement=Measurement(blocks=3, repeats=1))
    (tables,) = run_workers(1, lambda comm: timing(spec, comm, Images(), CPU, lambda *_: None, LaunchSettings()))
    rows = tables["iterations"]
    assert {row["block"]: row["slowdown"] for row in rows} == {1: 1.0, 2: 2.0, 3: 3.0}
    assert Links.seen == [timed.SPEED_SAMPLE_S, 0.0, 0.0]


def test_every_method_starts_in_its_stationary_state(monkeypatch):
    """It is set before the first step, warm-up steps included."""
    warmed, at_first_step = [], []
    monkeypatch.setattr(WorkerExchange, "warm_start", lambda exchange: warmed.append(exchange))
    step = Session.step

    def first(session, *args, **kwargs):
        at_first_step.append(len(warmed))
        return step(session, *args, **kwargs)

    monkeypatch.setattr(Session, "step", first)
    spec = replace(SPEC, cluster=Cluster(workers=1), measurement=Measurement(blocks=1, repeats=1))
    run_workers(1, lambda comm: timing(spec, comm, Images(), CPU, lambda *_: None, LaunchSettings()))
    assert set(at_first_step) == {len(set(map(id, warmed)))} == {4}


def test_every_iteration_is_reported_and_the_warm_up_computes_no_gradient(tables, reports, batches):
    warm_up, timed = 5, len(tables["iterations"])
    assert [done for done, _ in reports] == list(range(1, warm_up + timed + 1))
    assert {total for _, total in reports} == {warm_up + timed}
    assert len(batches) == 1 + timed  # the first allocates the gradients


def test_rows_of_each_variant_read_as_if_it_had_a_run_of_its_own(tables, tmp_path):
    place = tmp_path / "together"
    place.mkdir()
    pd.DataFrame(tables["iterations"]).to_csv(place / "iterations.csv")
    metadata = {"machine": "a machine", "network": "testbed", "rate_mbit": 100.0}
    run = {"spec": json.loads(SPEC.to_json()), "provenance": metadata, "train_samples": 24, "files": {}}
    (place / "run.json").write_text(json.dumps(checksums.signed(run)))
    rows = read_members([place / "iterations.csv"], ("none", "cast"))
    assert set(rows[rows["variant"] == "often"]["timed"]) == {"none", "cast", "often"}
    table = summarise(rows).set_index("variant")
    assert list(table.index) == ["none", "topk", "cast", "often"] and (table["blocks"] == 2).all()
    assert table["run"].to_dict()["often"] == "together-often"
    assert (table["method"]["often"], table["ratio"]["often"], table["refresh_every"]["often"]) == ("dlgs", 0.02, 4)
    assert table["selection"]["topk"] == "compiled" and pd.isna(table["ratio"]["none"])
    assert table["density"]["topk"] == pytest.approx(0.1, abs=0.01) != table["density"]["often"]


def test_the_code_of_every_variant_decides_the_run_and_its_spec_says_them():
    assert {ROOT / "methods" / f"{name}.py" for name in ("none", "topk", "cast", "dlgs")} <= set(behind_run(SPEC))
    assert RunSpec.from_json(SPEC.to_json()) == SPEC


BUCKETINGS = {f"none{label}": size for label, size in (("", 2**23), ("-256kib", 2**18), ("-64kib", 2**16))}
SECONDS = st.lists(st.floats(0.01, 10), min_size=3, max_size=3)


def run_of_bucketings(place: Path, blocks: list[list[float]]) -> Path:
    """A timing run of Top-K and three bucketings of uncompressed. ``blocks``: seconds of each bucketing by block."""
    timed_with = {
        label: {"method": "none", "variant": "", "options": {}, "bucketing": label[5:], "bucket_bytes": size}
        for label, size in BUCKETINGS.items()
        if label != "none"
    }
    timed_with |= {"topk-0.1": {"method": "topk", "variant": "", "options": OPTIONS}}
    spec = RunSpec("timing", Training("resnet20"), Scheme(timed_with=timed_with), Cluster(workers=2), Measurement())
    rows = [
        {"launch": 1, "block": block, "variant": label, "phase": "step", "share": 1.0, "iteration_s": seconds}
        | dict.fromkeys(MEASURED, seconds / len(MEASURED))
        | {"sent_bytes": 1, "received_bytes": 1, "density": 1.0}
        for block, times in enumerate(blocks, start=1)
        for label, seconds in [*zip(BUCKETINGS, times, strict=True), ("topk-0.1", 1.0)]
    ]
    place.mkdir(exist_ok=True)
    pd.DataFrame(rows).to_csv(place / "iterations.csv", index=False)
    groups = [{"variant": label, "bucket": i} for n, label in enumerate(BUCKETINGS, start=1) for i in range(n)]
    pd.DataFrame(groups).to_csv(place / "groups.csv", index=False)
    run = {"spec": json.loads(spec.to_json()), "provenance": {"machine": "a machine", "network": "testbed"}}
    (place / "run.json").write_text(json.dumps(checksums.signed(run | {"train_samples": 24, "files": {}})))
    return place / "iterations.csv"


@given(blocks=st.lists(SECONDS, min_size=1, max_size=5))
def test_nothing_is_compared_with_an_uncompressed_that_another_bucketing_of_the_run_beats(tmp_path_factory, blocks):
    path = run_of_bucketings(tmp_path_factory.mktemp("bucketings"), blocks)
    table = summarise(read_members([path])).set_index("variant")
    medians = [math.exp(statistics.median(map(math.log, times))) for times in zip(*blocks, strict=True)]
    assert table.loc["topk", "dense_s"] == table.loc["none", "iteration_s"] == pytest.approx(min(medians), rel=1e-5)
    assert list(table.index) == ["none", "topk"]
    fastest = [n for n, seconds in enumerate(medians, start=1) if seconds == min(medians)]
    assert table.loc["none", "num_buckets"] in fastest
