"""The study of sums of tensors of which whole blocks are zero: what it times, and what it refuses."""

import sys
from dataclasses import replace

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import CPU, read
from test_omnireduce import by_formula, numbers_of
from test_report import Items, Report

from dlgs_bench.comm.local import run_workers
from dlgs_bench.config import load as config
from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme
from dlgs_bench.training.sums import DENSITIES, contribution, sums

SHAPE = {"block": 10, "fused": 3, "in_flight": 2, "aggregators": 2}
OURS = ["halving-doubling", "ring", "omnireduce"]  # ways whose messages are counted


@pytest.mark.unit
@given(world=st.integers(1, 5), blocks=st.integers(5, 200), short=st.integers(0, 9), density=st.sampled_from(DENSITIES))
def test_the_blocks_lie_as_they_are_said_to(world, blocks, short, density):
    def found(positions: str) -> list[set[int]]:
        drawn = [contribution(rank, 10 * blocks - short, 10, positions, density) for rank in range(world)]
        assert {len(tensor) for tensor in drawn} == {10 * blocks - short}
        return [numbers_of(tensor, 10) for tensor in drawn]

    count = max(1, round(density * blocks))
    for positions in ("random", "overlapping"):
        own = found(positions)
        assert {len(numbers) for numbers in own} == {count}
        assert positions == "random" or all(numbers == own[0] for numbers in own)
    if density * world <= 0.9:
        assert len(set().union(*found("disjoint"))) == world * count


def check(rows: list[dict], shape: dict, ways: list[str]) -> None:
    """The rows of 2 workers and 2 repeats, against the formulas."""
    cases = len(DENSITIES) + len(DENSITIES) - 1 + sum(d <= 0.5 for d in DENSITIES)
    sparse = [way for way in ways if way not in ("halving-doubling", "engine")]
    assert [row["way"] for row in rows] == ways * 2 + sparse * 2 * (cases - 1)
    for row in rows:
        assert row["seconds"] > 0
        assert pd.isna(row["bytes"]) == (row["way"] in ("engine", "all-gather"))
        if row["way"] == "omnireduce":
            mine = [contribution(rank, 995, 10, row["positions"], row["density"]) for rank in range(2)]
            sent = by_formula([numbers_of(tensor, 10) for tensor in mine], 995, **shape)
            assert (row["messages"], row["bytes"]) == tuple(map(max, zip(*sent, strict=True)))
        assert pd.isna(row["streams"]) if row["way"] != "omnireduce" else row["streams"] == 2  # 100 blocks: no more


def spec_of(shape: dict, engine: str = "horovod") -> RunSpec:
    measurement = Measurement(repeats=2, largest_entries=995)
    return RunSpec("sums", scheme=Scheme(streams=shape), cluster=Cluster(engine, 2), measurement=measurement)


@pytest.mark.unit
@pytest.mark.parametrize("placed, more", [({}, ["engine", "all-gather"]), ({"aggregators": 1, "dedicated": True}, [])])
def test_all_ways_are_timed_in_every_case_and_send_what_they_count(placed, more):
    spec = spec_of(SHAPE | placed)
    found = run_workers(spec.processes, lambda comm: sums(spec, comm, None, CPU, lambda *_: None))
    check(found[0]["sums"], spec.scheme.streams, OURS + more)


@pytest.mark.unit
def test_a_brief_run_has_few_cases():
    spec = spec_of(SHAPE)
    brief = replace(spec, measurement=replace(spec.measurement, brief=True))
    rows = run_workers(2, lambda comm: sums(brief, comm, None, CPU, lambda *_: None))[0]["sums"]
    assert {(row["positions"], row["density"]) for row in rows} == {("random", density) for density in (1, 0.1, 0.01)}


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("aggregators", [1, 3])
def test_aggregators_are_processes_of_their_own(aggregators, tmp_path):
    spec, log = spec_of(SHAPE | {"aggregators": aggregators, "dedicated": True}, "torch_dist"), tmp_path / "log"
    assert launch(spec, LaunchSettings(), tmp_path / "run", log) == 0, log.read_text()
    rows = pd.read_csv(tmp_path / "run" / "sums.csv").to_dict("records")
    check(rows, spec.scheme.streams, OURS)


@pytest.mark.unit
def test_the_table_and_the_figure_tell_where_aggregators_are(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # scripts send theirs to a log
    report = Report(tmp_path, ())
    for name, placed, ways, latency_ms in (
        ("shared", {}, [*OURS, "engine", "all-gather"], 0),
        ("dedicated", {"aggregators": 1, "dedicated": True}, OURS, 0),
        ("wide", {"in_flight": 1}, OURS, 50),
    ):  # fmt: skip
        spec = spec_of(SHAPE | placed)
        links = {"network": "testbed", "rates_mbit": (100.0,), "latency_ms": float(latency_ms)}
        spec = replace(spec, cluster=replace(spec.cluster, **links))
        rows = [
            {"positions": positions, "density": density, "way": way, "repeat": repeat, "messages": 3, "bytes": 100}
            | {"seconds": density * (1 if way == "omnireduce" else 2) + 0.001 * repeat, "streams": 2}
            for positions in ("random", "disjoint") for density in (0.4, 0.1) for way in ways for repeat in (1, 2)
        ]  # fmt: skip
        report.runs.write(f"sums/{name}", spec, sums=pd.DataFrame(rows))
    files = {ext: tmp_path / f"sums.{ext}" for ext in ("csv", "md", "tex", "html")}
    report.script("studies/sums/table.py", Items(*report.runs.every("sums", "sums.csv")), Items(**files))
    table = pd.read_csv(files["csv"])
    table = table[table["positions"] == "random"]
    ours = table[(table["way"] == "omnireduce") & (table["latency_ms"] == 0)].set_index(["dedicated", "density"])
    bounds = {(False, 0.4): 1 / 0.52, (False, 0.1): 1 / 0.145, (True, 0.4): 1 / 1.28, (True, 0.1): 1 / 0.38}
    assert ours["bound"].to_dict() == pytest.approx(bounds, rel=1e-4)
    assert ours["speedup"].between(1.9, 2.1).all()
    shown = files["md"].read_text()
    assert "| 2 shared" in shown and "| 1 dedicated" in shown and "nan" not in shown
    assert "| Latency (ms)   |" in shown and "| 50             |" in shown
    text = report.figure("studies/sums/figure.py", "figure", Items(table=files["csv"]))
    assert text.count("times as fast as a ring") == 3  # a panel each; other positions are in the table alone
    assert "2 workers, dedicated" in text and "2 workers, 50 ms, shared" in text and "disjoint" not in text
    for shape in ("as many as workers, 3 x 10, 2", "as many as workers, 3 x 10, 1", "one aggregator, 3 x 10, 2"):
        assert text.count(f"{shape} in flight") == 1  # in the legend of all panels
    assert "bound, one aggregator" in text and "all-gather" in text


DIES = """
import os, signal, sys
from pathlib import Path
from dlgs_bench.comm import Communicator
from dlgs_bench.launch.liveness import run_as_rank
from dlgs_bench.training import run

count = Communicator._count

def dies(self, round):
    count(self, round)
    if self.rank == 3 and self.sent_messages > 100:
        os.kill(os.getpid(), signal.SIGKILL)

Communicator._count = dies
run_as_rank(Path(sys.argv[1]), run.main)
"""


@pytest.mark.engine
@pytest.mark.slow
def test_an_aggregator_that_dies_ends_the_run(tmp_path, capsys):
    spec = spec_of(SHAPE | {"dedicated": True}, "torch_dist")
    program = [sys.executable, "-c", DIES]
    assert launch(spec, LaunchSettings(), tmp_path / "run", tmp_path / "log", program) != 0
    said = capsys.readouterr().err
    assert "sums none: rank 3, an aggregator, has died, last at step " in said or "not one step since" in said
    assert f"; more in {tmp_path / 'log'}\n" in said and "Traceback" not in said
    assert {path.name for path in tmp_path.iterdir()} == {"log"}


@pytest.mark.unit
def test_a_way_with_another_sum_ends_the_run(monkeypatch):
    monkeypatch.setattr("dlgs_bench.training.sums.by_gather", lambda comm, tensor, block: torch.zeros_like(tensor))
    spec = RunSpec("sums", scheme=Scheme(streams=SHAPE), measurement=Measurement(repeats=1, largest_entries=995))
    with pytest.raises(RuntimeError, match=r"all-gather: the sum differs from the ring.s at density 1"):
        run_workers(2, lambda comm: sums(spec, comm, None, CPU, lambda *_: None))


@pytest.mark.unit
def test_the_study_runs_each_shape_where_there_is_a_testbed():
    study = {
        "workers": [2, 4],
        "fused": [8, 32],
        "in_flight": [1],
        "rate_mbit": 100,
        "dedicated": False,
        "wide_area": False,
    }
    values = read("quick") | {"network": "testbed", "studies": {"sums": study}}
    runs = config.load(values, "c").studies["sums"]
    assert len(runs) == 2 * 2 * 2
    spec = runs["sums/4workers-1aggregators-8fused-1inflight"]
    assert spec.scheme.streams == {"block": 256, "fused": 8, "in_flight": 1, "aggregators": 1}
    assert spec.cluster == Cluster("torch_dist", 4, network="testbed", rates_mbit=(100.0,) * 4)
    dedicated = config.load(values | {"studies": {"sums": study | {"dedicated": True}}}, "c").studies["sums"]
    assert dedicated.items() > runs.items() and len(dedicated) == 2 * len(runs)
    spec = dedicated["sums/4workers-4dedicated-8fused-1inflight"]
    assert spec.scheme.streams == {"block": 256, "fused": 8, "in_flight": 1, "aggregators": 4, "dedicated": True}
    assert len(spec.cluster.rates_mbit) == spec.processes == 8
    whole = {name for name, spec in dedicated.items() if not spec.measurement.brief}
    assert whole == {
        f"sums/{n}workers-{n}{how}-32fused-1inflight" for n in (2, 4) for how in ("aggregators", "dedicated")
    }
    sized = config.load(values | {"studies": {"sums": study | {"other_blocks": [64, 1024]}}}, "c").studies["sums"]
    added = {name: spec for name, spec in sized.items() if name not in runs}
    assert set(added) == {f"sums/{n}workers-block{block}" for n in (2, 4) for block in (64, 1024)}
    spec = added["sums/4workers-block64"]
    assert (
        spec.scheme.streams == {"block": 64, "fused": 32, "in_flight": 1, "aggregators": 4} and spec.measurement.brief
    )
    assert not config.load(values | {"network": "host"}, "c").studies["sums"]


@pytest.mark.unit
@pytest.mark.parametrize("why", [None, "no such links"])
def test_a_wide_area_is_timed_where_the_testbed_can_have_it(why, monkeypatch):
    monkeypatch.setattr("dlgs_bench.testbed.testbed.why_unavailable", lambda latency_ms, rate_mbit: why)
    runs = config.load(read("quick") | {"network": "testbed"}, "c").studies["sums"]
    wide = {name.rpartition("-")[2]: spec for name, spec in runs.items() if "wide-area" in name}
    assert set(wide) == (set() if why else {"1inflight", "4inflight"})
    if not why:
        links = {"network": "testbed", "rates_mbit": (50.0,) * 4, "latency_ms": 50.0}
        assert all(spec.cluster == Cluster("torch_dist", 4, **links) for spec in wide.values())
        assert [spec.scheme.streams["in_flight"] for spec in wide.values()] == [1, 4]


@pytest.mark.unit
@pytest.mark.parametrize(
    "study, said",
    [
        ({"block": 0}, "studies.sums.block: 0 is not valid; give entries of a block, an integer of at least 1"),
        (
            {"workers": [1]},
            "studies.sums.workers.0: 1 is not valid; give a number of workers, an integer from 2 to 1024",
        ),
        (
            {"engine": "horovod"},
            "studies.sums.dedicated: horovod has no messages between two processes; give false, or another engine",
        ),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_one_line(study, said):
    with pytest.raises(config.ConfigError, match=said):
        config.load(read("quick") | {"network": "testbed", "studies": {"sums": study}}, "c")
