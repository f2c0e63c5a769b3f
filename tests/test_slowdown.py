"""Links in proportion: the rate follows from how long this machine computes."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import read

from dlgs_bench import plugins
from dlgs_bench.config import load as config
from dlgs_bench.errors import ConfigError
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
    values = config._with_defaults(read("quick"), config.full_schema())
    found = config.load(values | {"network": "testbed"}, "c")
    timed = [spec for name, spec in found.every.items() if name.startswith(("timing/", "exchanges/"))]
    assert any(spec.cluster.in_proportion for spec in timed)
    for name, spec in found.every.items():
        if spec.cluster.in_proportion:
            assert "-proportional" in name and not spec.cluster.rates_mbit
            assert f"layers/{spec.training.model}-{spec.cluster.workers}workers" in found.every
    rates = found.studies["rates"]
    assert rates and all(not spec.cluster.in_proportion for spec in rates.values())


@given(st.floats(1e-2, 1e2), st.floats(0, 10))
def test_a_latency_in_proportion_is_as_many_times_longer_as_this_machine_computes_slower(computation_s, latency_ms):
    nodes = replace(PAPER, latency_ms=latency_ms)
    found = slowdown("vgg16", 32, computation_s, nodes)
    assert found["latency_ms"] == pytest.approx(latency_ms * found["slowdown"], rel=0.006)


def test_a_latency_in_proportion_reaches_the_runs_that_ask_for_it_and_is_no_part_of_what_was_asked(tmp_path):
    path = tmp_path / "rate.json"
    rate = {"model": "resnet20", "rate_mbit": 123.0, "forward_s": 0.5, "computation_s": 2.0, "latency_ms": 3.5}
    path.write_text(json.dumps(rate))
    values = read("quick") | {"network": "testbed", "testbed": {"rate_mbit": "proportional"}}
    without = config.load(values, "c")
    values["testbed"] |= {"latency_ms": "proportional"}
    found = config.load(values, "c")
    name = "timing/resnet20-cast-topk-lags-dlgs-0.1-0.01-allgather-2workers-proportional"
    assert with_rate(path, without.runs[name])[0].cluster.latency_ms == 0
    spec = found.runs[f"{name}-latency"]
    told, _ = with_rate(path, spec)
    assert told.cluster.latency_ms == 3.5 and told.asked() == spec.asked() == spec
    exchanged = {s.cluster.latency_in_proportion for n, s in found.calibrations.items() if "-proportional" in n}
    assert exchanged == {True}
    layers = [s.cluster for n, s in found.calibrations.items() if n.startswith("layers/")]
    assert layers and not any(cluster.latency_in_proportion for cluster in layers)
    assert found.studies["rates"] == without.studies["rates"]  # links of a study's own rates
    values["testbed"] |= {"rate_mbit": 100}
    with pytest.raises(ConfigError, match=r"testbed\.latency_ms: proportional needs testbed.rate_mbit: proportional"):
        config.load(values, "c")
