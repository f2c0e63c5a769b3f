"""The testbed: real TCP over shaped links, engines across them, and nothing left behind by any death."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from support import PATIENCE_S, ROOT, every_engine, needs_horovod, read, until

from dlgs_bench.config import load as config
from dlgs_bench.engines import ENGINES
from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec
from dlgs_bench.testbed import testbed
from dlgs_bench.testbed.namespaces import MARK
from dlgs_bench.testbed.testbed import Testbed


@pytest.fixture
def here() -> None:
    if testbed.why_unavailable():
        pytest.skip(f"no testbed here: {testbed.why_unavailable()}")


def median_of_five(measure: Callable[[], float]) -> float:
    """The median of five measurements, because other programs use this machine, too."""
    return statistics.median(measure() for _ in range(5))


def within(bed: Testbed, rate_mbit: float, *pair: int, least: float = 0.9, most: float = 1.05) -> bool:
    """Whether links carry this rate: at most 5 % more, and at most 10 % less, for a machine that is busy."""
    return least <= median_of_five(lambda: bed.measure_mbit(*pair)) / rate_mbit <= most


def inside(owner: int) -> list[psutil.Process]:
    """The processes that run in testbeds of the process ``owner``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").split(" ")[0] == str(owner):
                found.append(process)
        except psutil.Error:
            continue
    return found


def networks(processes: list[psutil.Process]) -> set[str]:
    return {str(Path(f"/proc/{p.pid}/ns/net").readlink()) for p in processes}


def holds_any(spaces: set[str]) -> bool:
    """Whether any process is in one of the namespaces or holds it open."""
    for folder in Path("/proc").glob("[0-9]*"):
        for link in [folder / "ns" / "net", *(folder / "fd").glob("*")]:
            try:
                if str(link.readlink()) in spaces:
                    return True
            except OSError:
                continue
    return False


@pytest.mark.root
@pytest.mark.parametrize("rate_mbit", [20, 200])
def test_a_tcp_stream_has_the_rate_asked_for(here, rate_mbit):
    with Testbed([rate_mbit, rate_mbit]) as bed:
        assert within(bed, rate_mbit)


@pytest.mark.root
def test_each_host_has_the_rate_of_its_own_link(here):
    with Testbed([200, 50, 200]) as bed:
        assert within(bed, 50)  # the slowest, unless said otherwise
        assert within(bed, 50, 0, 1)
        assert within(bed, 200, 0, 2)


@pytest.mark.root
@pytest.mark.parametrize("latency_ms", [0, 5])
def test_links_take_other_rates_while_processes_use_them(here, latency_ms):
    with Testbed([50, 50], latency_ms) as bed:  # a program carries packets with latency, on a slow machine not many
        assert within(bed, 50)
        for rates in ([10, 25], [40, 40]):
            bed.shape(rates)
            # Rates here differ by more than a factor of 1.6. A busy program with latency sends in bursts.
            assert all(within(bed, min(rates), *pair, least=0.75, most=1.25) for pair in ((0, 1), (1, 0)))
        assert bed.measure_round_trip_ms() >= 2 * latency_ms


# What every host's end of its link may send, before and after rank 0 has asked for links half as fast.
HALF = """
import os, time
from pathlib import Path
from pyroute2 import IPRoute
from dlgs_bench.testbed import link_rates

def rate():
    with IPRoute() as ip:
        (tbf,) = (q for q in ip.get_qdiscs() if q.get_attr("TCA_KIND") == "tbf")
        return tbf.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"]

asked = [25e6, 12.5e6][int(os.environ["RANK"])]
if os.environ["RANK"] == "0":
    link_rates.scale(0.5)
end = time.monotonic() + 120
while rate() == asked and time.monotonic() < end:
    time.sleep(0.05)
print(f"rate {rate() / asked:g}")
"""


@pytest.mark.root
def test_rank_0_makes_the_links_of_its_run_slower(here):
    command = hosts("torch_dist", "200,100", sys.executable, "-c", HALF)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.count("rate 0.5") == 2, done.stdout + done.stderr


@pytest.mark.root
def test_two_testbeds_exist_side_by_side_and_the_machine_sees_neither(here):
    before = set(psutil.net_if_addrs())
    with Testbed([200, 200]) as first, Testbed([50, 50]) as second:
        sleepers = [bed.popen(0, ["sleep", "600"]) for bed in (first, second)]
        assert until(lambda: len(networks([*sleepers, psutil.Process()])) == 3)
        assert within(first, 200) and within(second, 50)
        assert set(psutil.net_if_addrs()) == before
        spaces = networks(sleepers)
    assert [s.returncode for s in sleepers] == [-signal.SIGKILL] * 2
    assert until(lambda: not holds_any(spaces))


def hosts(engine: str, rates_mbit: str, *command: str, latency_ms: str = "0") -> list[str]:
    return [sys.executable, "-m", "dlgs_bench.launch.hosts", engine, rates_mbit, latency_ms, *command]


@pytest.mark.root
def test_a_killed_launcher_leaves_nothing(here):
    """The testbed, its workers and their namespaces end, too, if the process that started the testbed is killed."""
    command = hosts("torch_dist", "200,200", "sleep", "600")
    starter = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({command})"], cwd=ROOT)
    assert until(lambda: psutil.Process(starter.pid).children())
    (below,) = psutil.Process(starter.pid).children()
    assert until(lambda: sum(p.name() == "sleep" for p in inside(below.pid)) == 2)
    spaces = networks(inside(below.pid))
    assert len(spaces) == 2
    starter.kill()
    starter.wait()
    assert until(lambda: not below.is_running() and not inside(below.pid))
    assert until(lambda: not holds_any(spaces))


@pytest.mark.root
def test_clean_ends_what_outlived_its_launcher(here):
    outliving = hosts("torch_dist", "200,200", "sh", "-c", "sleep 600; true")  # sh dies with its parent, sleep does not
    launcher = subprocess.Popen(outliving, cwd=ROOT)
    assert until(lambda: sum(p.name() == "sleep" for p in inside(launcher.pid)) == 2)
    left = inside(launcher.pid)
    spaces = networks(left)
    testbed.clean()
    assert all(p.is_running() for p in left)  # they still have their launcher
    launcher.kill()
    launcher.wait()
    assert until(lambda: {p.name() for p in inside(launcher.pid)} == {"sleep"})
    clean = [sys.executable, "-m", "dlgs_bench.testbed.testbed", "clean"]
    said = subprocess.run(clean, cwd=ROOT, capture_output=True, text=True)
    assert said.stdout.count("sleep 600") == 2
    assert until(lambda: not inside(launcher.pid) and not holds_any(spaces))


@pytest.mark.root
def test_a_failing_worker_ends_the_others_and_is_shown(here):
    command = hosts("torch_dist", "200,200,200", "sh", "-c", "if [ $RANK = 1 ]; then echo mine; exit 3; fi; sleep 600")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "[1]<stdout>:mine" in done.stdout and "rank 1 ended with status 3" in done.stdout


@pytest.mark.root
@every_engine
def test_three_hosts_train_to_the_same_bits(here, engine, tmp_path):
    target = tmp_path / engine
    # Three workers, and two with a parameter server on the third host.
    worker = [sys.executable, str(ROOT / "tests" / "equal_worker.py"), engine, str(target)]
    worker += ['["none", "dlgs"]', '["allgather", "ps-weights"]']
    done = subprocess.run(
        hosts(engine, "1000,1000,200", *worker),
        cwd=ROOT, env=os.environ | ENGINES[engine].environment(threads=1), capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    first, *others = [torch.load(f"{target}.{rank}", weights_only=True) for rank in range(3)]
    assert set(first) == {
        f"{method} {topology}" for method in ("none", "dlgs") for topology in ("allgather", "ps-weights")
    }
    for case, state in first.items():
        assert all(torch.equal(state["parameters"], other[case]["parameters"]) for other in others), case


# Straight to Horovod, for what it opens connections of its own for.
SETS = """
import torch, horovod.torch as hvd
hvd.init(process_sets="dynamic")
rank = hvd.rank()
parts, _ = hvd.alltoall(torch.arange(3.0) + 10 * rank, splits=torch.ones(3, dtype=torch.int32))
assert parts.tolist() == [rank, 10 + rank, 20 + rank], parts
ends = hvd.add_process_set([0, 2])
if rank != 1:
    total = hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum, process_set=ends)
    assert total.item() == 2, total
hvd.barrier()
hvd.shutdown()
"""


@needs_horovod
@pytest.mark.root
def test_horovods_all_to_all_and_process_sets_cross_the_links(here):
    command = hosts("horovod", "200,200,200", sys.executable, "-c", SETS)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.root
def test_a_run_records_its_links(here, tmp_path):
    cluster = Cluster(network="testbed", rates_mbit=(200.0, 100.0), latency_ms=5)
    spec = RunSpec("exchanges", cluster=cluster, measurement=Measurement(repeats=1, largest={"none": 1000}))
    log = tmp_path / "log"
    assert launch(spec, LaunchSettings(), tmp_path / "calibration" / "run", log) == 0, log.read_text()
    where = json.loads((tmp_path / "calibration" / "run" / "run.json").read_text())["provenance"]
    assert (where["network"], where["rate_mbit"], where["fastest_mbit"]) == ("testbed", 100, 200)
    assert 0 < where["measured_mbit"] <= 105
    assert where["latency_ms"] == 5 and where["round_trip_ms"] >= 10


def check(*without: str) -> subprocess.CompletedProcess:
    """The testbed's own check, without some of this process's capabilities."""
    if os.geteuid() or not shutil.which(without[0]):
        pytest.skip("takes rights away from root, with util-linux")
    command = [*without, sys.executable, "-m", "dlgs_bench.testbed.testbed", "check"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.root
def test_user_namespaces_stand_in_for_root(here):
    done = check("setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all")  # may map itself, and nothing else
    if "Operation not permitted" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.returncode == 0 and done.stdout.startswith("the testbed works: "), done.stderr


@pytest.mark.unit
def test_what_was_stopped_is_not_stopped_again(monkeypatch):
    """Another process may have the number of a process that has ended."""
    killed, made = [], Testbed.__new__(Testbed)
    made._stopping = threading.Lock()
    made._started = [subprocess.Popen(["sleep", "60"], start_new_session=True)]
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, how: (killed.append(group), kill(group, how)))
    made.stop()
    made.stop()
    assert len(killed) == 1


@pytest.mark.root
def test_a_missing_privilege_is_one_line():
    done = check("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line == "error: no testbed here: the kernel allows no network namespaces: Operation not permitted"


def quick(**changes) -> dict:
    return read("quick") | changes


@pytest.mark.unit
def test_only_what_is_timed_uses_the_testbed():
    values = quick(network="testbed", testbed={"rate_mbit": 500, "host_rates_mbit": {1: 100}})
    found = config.load(values, "c")
    assert {spec.processes for spec in found.runs.values()} == {2, 4}  # three workers and a server's host
    for spec in found.runs.values():
        links = ("testbed", (500, 100, 500, 500)[: spec.processes])
        assert (spec.cluster.network, spec.cluster.rates_mbit) == (links if spec.kind == "timing" else ("host", ()))
        assert RunSpec.from_json(spec.to_json()) == spec
    for spec in found.calibrations.values():
        assert spec.cluster.network == ("testbed" if spec.kind == "exchanges" else "host")


@pytest.mark.unit
def test_auto_takes_the_testbed_where_there_is_one_and_says_where_not(monkeypatch):
    for reason, network in ((None, "testbed"), ("no such kernel", "host")):
        monkeypatch.setattr(testbed, "why_unavailable", lambda *_, reason=reason: reason)
        found = config.load(quick(network="auto"), "c")
        assert {s.cluster.network for s in found.runs.values() if s.kind == "timing"} == {network}
        warning = "c: network: auto is host, the network is not shaped: no such kernel"
        assert found.warning == (warning if reason else "")
    found = config.load(quick(network="testbed"), "c")
    with pytest.raises(config.ConfigError, match="c: network: no testbed here: no such kernel"):
        config.check_machine(found.values, "c")


@pytest.mark.unit
def test_links_with_latency_are_refused_where_there_are_none(monkeypatch):
    def without_latency(latency_ms=0, rate_mbit=0):
        return f"not {rate_mbit:g}" if latency_ms else None

    monkeypatch.setattr(testbed, "why_unavailable", without_latency)
    for links, why in (({"rate_mbit": 50, "host_rates_mbit": {1: 80}}, "not 80"), ({}, "not 0")):
        found = config.load(quick(network="testbed", testbed=links | {"latency_ms": 5}), "c")
        with pytest.raises(config.ConfigError, match=f"^c: testbed.latency_ms: {why}; give 0, or slower links$"):
            config.check_machine(found.values, "c")
        config.check_machine(config.load(quick(network="testbed", testbed=links), "c").values, "c")


@pytest.mark.unit
@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"network": "wifi"}, "network: 'wifi' is not valid; give .*one of: host"),
        ({"testbed": {"rate_mbit": 0}}, "testbed.rate_mbit: 0 is not valid; give proportional .* or Mb/s"),
        ({"testbed": {"rate_mbit": 9, "host_rates_mbit": {4: 100}}}, "no host 4; give hosts from 0 to 3"),
        (
            {"testbed": {"latency_ms": -1}},
            "testbed.latency_ms: -1 is not valid; give .*milliseconds, a number from 0 to 1000",
        ),
        ({"testbed": {"latency_ms": "50ms"}}, "testbed.latency_ms: '50ms' is not valid; give .*milliseconds"),
        ({"network": "testbed", "workers": 1}, "network: testbed needs at least 2 workers"),
        ({"network": "testbed", "device": "cuda"}, "network: testbed is for device: cpu"),
    ],
)
def test_mistakes(changes, expected):
    with pytest.raises(config.ConfigError, match=expected):
        config.load(quick(**changes), "c")
