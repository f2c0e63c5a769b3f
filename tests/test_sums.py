"""The study of sums of tensors of which whole blocks are zero: what it times, and what it refuses."""

import pytest
import torch
from conftest import CPU, read
from hypothesis import given
from hypothesis import strategies as st
from test_omnireduce import by_formula, numbers_of

from harness.comm.local import run_workers
from harness.config import load as config
from harness.spec import Cluster, Measurement, RunSpec, Scheme
from harness.training.sums import DENSITIES, contribution, sums

SHAPE = {"block": 10, "fused": 3, "in_flight": 2, "aggregators": 2}


@given(world=st.integers(1, 5), blocks=st.integers(5, 200), short=st.integers(0, 9), density=st.sampled_from(DENSITIES))
def test_the_blocks_lie_as_they_are_said_to(world, blocks, short, density):
    def found(places: str) -> list[set[int]]:
        drawn = [contribution(rank, world, 10 * blocks - short, 10, places, density) for rank in range(world)]
        assert {len(tensor) for tensor in drawn} == {10 * blocks - short}
        return [numbers_of(tensor, 10) for tensor in drawn]

    count = max(1, round(density * blocks))
    for places in ("random", "overlapping"):
        own = found(places)
        assert {len(numbers) for numbers in own} == {count}
        assert places == "random" or all(numbers == own[0] for numbers in own)
    if density * world <= 0.9:
        assert len(set().union(*found("disjoint"))) == world * count


def test_all_ways_are_timed_in_every_case_and_send_what_they_count():
    spec = RunSpec(
        "sums", scheme=Scheme(streams=SHAPE), cluster=Cluster(workers=2),
        measurement=Measurement(repeats=2, largest_entries=995),
    )  # fmt: skip
    rows = run_workers(2, lambda comm: sums(spec, comm, None, CPU, lambda *_: None))[0]["sums"]
    ways = ["engine", "halving-doubling", "ring", "omnireduce", "all-gather"]
    cases = len(DENSITIES) + len(DENSITIES) - 1 + sum(d <= 0.5 for d in DENSITIES)
    assert [row["way"] for row in rows] == ways * 2 * cases
    for row in rows:
        assert row["seconds"] > 0
        assert (row["bytes"] is None) == (row["way"] in ("engine", "all-gather"))
        if row["way"] == "omnireduce":
            mine = [contribution(rank, 2, 995, 10, row["places"], row["density"]) for rank in range(2)]
            sent = by_formula([numbers_of(tensor, 10) for tensor in mine], 995, **SHAPE)
            assert (row["messages"], row["bytes"]) == tuple(map(max, zip(*sent, strict=True)))


def test_a_way_with_another_sum_ends_the_run(monkeypatch):
    monkeypatch.setattr("harness.training.sums.by_gather", lambda comm, tensor, block: torch.zeros_like(tensor))
    spec = RunSpec("sums", scheme=Scheme(streams=SHAPE), measurement=Measurement(repeats=1, largest_entries=995))
    with pytest.raises(RuntimeError, match="all-gather has another sum than the engine's, density 1"):
        run_workers(2, lambda comm: sums(spec, comm, None, CPU, lambda *_: None))


def test_the_study_runs_each_shape_where_there_is_a_testbed():
    study = {"workers": [2, 4], "fused": [8, 32], "in_flight": [1], "rate_mbit": 100}
    values = read("quick") | {"network": "testbed", "studies": {"sums": study}}
    runs = config.load(values, "c").studies["sums"]
    assert len(runs) == 2 * 2 * 2
    spec = runs["sums/4workers-1aggregators-8fused-1inflight"]
    assert spec.scheme.streams == {"block": 256, "fused": 8, "in_flight": 1, "aggregators": 1}
    assert spec.cluster == Cluster("torch_dist", 4, network="testbed", rates_mbit=(100.0,) * 4)
    assert not config.load(values | {"network": "host"}, "c").studies["sums"]


@pytest.mark.parametrize(
    "study, said",
    [
        ({"block": 0}, "studies.sums.block: 0 is not valid; give entries of a block, an integer of at least 1"),
        (
            {"workers": [1]},
            "studies.sums.workers.0: 1 is not valid; give a number of workers, an integer of at least 2",
        ),
    ],
)
def test_a_study_that_cannot_be_is_refused_in_one_line(study, said):
    with pytest.raises(config.ConfigError, match=said):
        config.load(read("quick") | {"network": "testbed", "studies": {"sums": study}}, "c")
