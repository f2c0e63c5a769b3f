"""Links in proportion: the rate follows from how long this machine computes."""

import json
from dataclasses import replace

import pytest
from conftest import read
from hypothesis import given
from hypothesis import strategies as st

from dlgs_bench import plugins
from dlgs_bench.config import load as config
from dlgs_bench.config.errors import ConfigError
from dlgs_bench.spec import Cluster, RunSpec, Training
from dlgs_bench.timemodel.slowdown import LEAST_MBIT, MOST_MBIT, Nodes, slowdown, with_rate

pytestmark = pytest.mark.unit

PAPER = Nodes(50_000, 721 * 4.0871e9)


def test_a_machine_as_fast_as_the_nodes_gets_their_links():
    there_s = 64 * plugins.describe("models", "resnet50")["multiply_adds"] / PAPER.multiply_adds_s
    assert there_s == pytest.approx(64 / 721, rel=1e-3)  # as fast as the card was published to be
    found = slowdown("resnet50", 64, there_s, PAPER)
    assert found["slowdown"] == pytest.approx(1) and found["proportional_mbit"] == pytest.approx(50_000)


def test_a_time_that_was_measured_on_the_nodes_replaces_the_multiply_adds_of_that_model_alone():
    measured = replace(PAPER, computation_ms={"resnet20": 7.5})
    assert slowdown("resnet20", 32, 0.075, measured)["proportional_mbit"] == pytest.approx(5000)
    assert slowdown("vgg16", 32, 1.0, measured) == slowdown("vgg16", 32, 1.0, PAPER)
    values = read("quick") | {"testbed": {"nodes": {"computation_ms": {"resnet2": 7.5}}}}
    expected = r"^c: testbed.nodes.computation_ms: no file models/resnet2.py .did you mean 'resnet20'"
    with pytest.raises(ConfigError, match=expected):
        config.load(values, "c")


@given(st.floats(1e-3, 1e3), st.floats(1.01, 100))
def test_half_as_fast_is_half_the_rate_within_what_can_be_shaped(computation_s, slower):
    fast, slow = (slowdown("vgg16", 32, s, PAPER) for s in (computation_s, slower * computation_s))
    assert slow["proportional_mbit"] * slower == pytest.approx(fast["proportional_mbit"])
    for found in (fast, slow):
        clipped = min(max(found["proportional_mbit"], LEAST_MBIT), MOST_MBIT)
        assert found["rate_mbit"] == pytest.approx(clipped, rel=0.006)


def test_the_rate_reaches_every_host_of_the_run_and_no_other_model(tmp_path):
    path = tmp_path / "rate.json"
    path.write_text(json.dumps({"model": "vgg16", "rate_mbit": 123.0, "forward_s": 0.5, "computation_s": 2.0}))
    spec = RunSpec("timing", Training("vgg16"), cluster=Cluster(network="testbed", in_proportion=True))
    spec = replace(spec, scheme=replace(spec.scheme, topology="ps-weights"))
    found, forward_s = with_rate(path, spec)
    assert found.cluster.rates_mbit == (123.0,) * 3 and found.cluster.calibrated_s == 2.0 and forward_s == 0.5
    assert replace(found, cluster=replace(found.cluster, rates_mbit=(), calibrated_s=0.0)) == spec
    with pytest.raises(ValueError, match="the rate is for vgg16, this run trains resnet20"):
        with_rate(path, replace(spec, training=Training("resnet20")))
    path.write_text("{")
    with pytest.raises(ValueError, match=r"rate\.json: "):
        with_rate(path, spec)


def test_runs_in_proportion_have_a_rate_file_each_and_studies_of_rates_have_their_own():
    values = config._with_defaults(read("quick"), config._schema())
    found = config.load(values | {"network": "testbed"}, "c")
    timed = [spec for name, spec in found.every.items() if name.startswith(("timing/", "exchanges/"))]
    assert any(spec.cluster.in_proportion for spec in timed)
    for name, spec in found.every.items():
        if spec.cluster.in_proportion:
            assert "-proportional" in name and not spec.cluster.rates_mbit
            assert f"layers/{spec.training.model}-{spec.cluster.workers}workers" in found.every
    assert all(not spec.cluster.in_proportion for spec in found.studies["rates"].values())
