"""Links with latency: what arrives when, over the program that carries packets and over the links themselves."""

import subprocess

import pandas as pd
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, until
from test_testbed import here, holds_any, hosts, inside, median_of_five, networks, quick, within  # noqa: F401

from dlgs_bench.config import grid
from dlgs_bench.config import load as config
from dlgs_bench.report import captions, tables
from dlgs_bench.spec import RunSpec
from dlgs_bench.testbed import latency
from dlgs_bench.testbed.latency import HEADER, QUEUE_S, Way, receiver
from dlgs_bench.testbed.testbed import Testbed, TestbedError

# Powers of two: times add up exactly, so that the oracle drops what the program drops.
LATENCY_S, BYTES_S = 1 / 16, 1024.0
pauses = st.integers(0, 12).map(lambda n: n / 64)
lengths = st.integers(1, 100)


@pytest.mark.unit
@given(st.lists(st.tuples(pauses, lengths), min_size=1, max_size=40))
def test_packets_arrive_in_order_late_and_no_faster_than_the_link(sent):
    way, now, kept = Way(LATENCY_S, BYTES_S), 0.0, []
    for number, (pause, length) in enumerate(sent):
        now += pause
        waits = max(0.0, kept[-1][0] + kept[-1][1] / BYTES_S - now - LATENCY_S) if kept else 0.0
        way.send(now, bytes([number]) * length)
        if waits <= QUEUE_S:
            kept.append((now + LATENCY_S + waits, length, number))
    for arrival, length, number in kept:
        assert way.next() == arrival
        assert way.arrived(arrival - 1e-6) == []
        assert way.arrived(arrival) == [bytes([number]) * length]
    assert way.next() is None and way.arrived(1e9) == []


@pytest.mark.unit
def test_a_packet_is_for_the_host_whose_address_it_bears():
    def packet(version: int, to: int) -> bytes:
        return bytes(HEADER) + bytes([version << 4, *range(1, 16), 10, 77, 0, to, 99])

    assert [receiver(packet(4, to), 3) for to in (1, 3, 4, 255)] == [0, 2, None, None]
    assert receiver(packet(6, 1), 3) is None


@pytest.mark.root
def test_rate_and_round_trip_are_those_asked_for(here):  # noqa: F811
    with Testbed([50, 20, 50], 20) as bed:
        assert within(bed, 50, 0, 2) and within(bed, 20, 0, 1) and within(bed, 20, 1, 2)
        assert 36 < median_of_five(lambda: bed.measure_round_trip_ms(0, 2)) < 60
    with Testbed([50, 50]) as bed:
        assert median_of_five(bed.measure_round_trip_ms) < 5


def carriers(owner: int) -> list[psutil.Process]:
    return [p for p in inside(owner) if latency.__file__ in p.cmdline()]


@pytest.mark.root
def test_a_killed_launcher_leaves_no_link(here):  # noqa: F811
    launcher = subprocess.Popen(hosts("torch_dist", "200,200", "sleep", "600", latency_ms="20"), cwd=ROOT)
    assert until(lambda: sum(p.name() == "sleep" for p in inside(launcher.pid)) == 2)
    carrying = carriers(launcher.pid)
    if not carrying:
        launcher.kill()
        pytest.skip("the kernel has netem")
    spaces = networks([p for p in inside(launcher.pid) if p.name() == "sleep"])
    assert len(spaces) == 2
    launcher.kill()
    launcher.wait()
    assert until(lambda: not any(p.is_running() for p in carrying))
    assert until(lambda: not inside(launcher.pid) and not holds_any(spaces))


@pytest.mark.root
def test_a_testbed_that_is_closed_leaves_no_link_and_faster_links_are_refused(here):  # noqa: F811
    with Testbed([100, 100], 5):
        carrying = carriers(psutil.Process().pid)
    assert not any(p.is_running() for p in carrying)
    if carrying:
        with pytest.raises(TestbedError, match=r"^links with latency carry up to 1000 Mb/s .*, not 1500$"):
            Testbed([100, 1500], 5).__enter__()
        assert not carriers(psutil.Process().pid)


@pytest.mark.unit
def test_latency_is_part_of_what_is_timed_and_of_its_name():
    near, far = (
        config.load(quick(network="testbed", testbed={"rate_mbit": 50, "latency_ms": ms}), "c") for ms in (0, 50)
    )
    timed = {name: spec for name, spec in far.runs.items() if spec.kind == "timing"}
    assert all(name.endswith("workers-50mbit-50ms") for name in timed) and not timed.keys() & near.runs.keys()
    assert {spec.cluster.latency_ms for spec in timed.values()} == {50.0}
    assert all(RunSpec.from_json(spec.to_json()) == spec for spec in timed.values())
    for name, spec in grid.calibrations(far.values).items():
        assert far.calibrations[name] == spec
        assert spec.cluster.latency_ms == (50.0 if spec.kind == "exchanges" else 0.0)
        assert spec.kind == "exchanges" or near.calibrations[name] == spec
    for spec in near.runs.values():
        assert "latency" not in spec.to_json()
    proportional = config.load(quick(network="testbed", testbed={"latency_ms": 0.5}), "c").runs
    assert all(name.endswith("-proportional-0.5ms") for name, spec in proportional.items() if spec.kind == "timing")
    studied = config.load(quick(network="testbed", testbed={"latency_ms": 5}), "c").studies["rates"]
    assert studied and all(spec.cluster.latency_ms == 5 for spec in studied.values())


@pytest.mark.unit
def test_rows_and_captions_say_it_where_there_is_one():
    row = {"network": "testbed", "rate_mbit": 50.0, "fastest_mbit": 50.0, "measured_mbit": 49.0}
    metadata = {
        "model": "m",
        "variant": "none",
        "ratio": None,
        "refresh_every": None,
        "topology": "allgather",
        "workers": 2,
    }
    metadata |= {"collective": "engine", "data_title": "d", "stand_in": False}
    names = type("Names", (), {"model": str, "variant": str})
    for links, said in (
        ({}, ""),
        ({"latency_ms": 0.0, "round_trip_ms": 0.1}, ""),
        ({"latency_ms": 50.0, "round_trip_ms": 100.62}, ", 50 ms from host to host (round trips of 100.6 ms)"),
    ):
        assert captions.network(pd.DataFrame([row | links])) == f"testbed network, 50 Mb/s links (measured 49){said}"
        assert tables.run_columns(row | metadata | links, names)["Latency (ms)"] == ("50" if said else "")
