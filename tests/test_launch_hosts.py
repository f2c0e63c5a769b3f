"""Runs on several hosts by ssh, for real: the same bits as on this machine, and nothing left behind by any death."""

import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import ssh_hosts
import yaml
from support import PATIENCE_S, ROOT, checkpointed, every_engine, numbers, of_run, until

from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training

needs_ssh = pytest.mark.skipif(bool(ssh_hosts.missing()), reason=ssh_hosts.missing() or "")
pytestmark = [pytest.mark.root, pytest.mark.slow, needs_ssh]
WORKER = [sys.executable, str(ROOT / "tests" / "stand_in_worker.py")]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with ssh_hosts.hosts(2, tmp_path_factory.mktemp("ssh")) as found:
        yield found


def over(hosts: ssh_hosts.Hosts, *slots: int, **place) -> LaunchSettings:
    named = tuple(f"{name}:{count}" for name, count in zip(hosts.names, slots, strict=True))
    return LaunchSettings(by="ssh", hosts=named, **place)


def accuracy(engine: str, steps: int = 12, workers: int = 2, planner: str = "layer") -> RunSpec:
    return RunSpec(
        "accuracy", Training("resnet20", batch=8, train_steps=steps, lr_steps=()),
        Scheme("dlgs", options={"ratio": 0.1, "refresh_every": 4}, planner=planner), Cluster(engine, workers=workers),
        Measurement(evaluations=3, test_samples=20, final_test_samples=40),
    )  # fmt: skip


LAUNCHER = """
import sys
from pathlib import Path
from dlgs_bench.launch import launcher
from dlgs_bench.launch.__main__ import clean_up_when_ended
from dlgs_bench.launch.launcher import RUN, launch
from dlgs_bench.spec import LaunchSettings, RunSpec
launcher.SAVE_GRACE_S = 60  # on a busy machine ranks need longer to save
spec, place, folder, *program = sys.argv[1:]
clean_up_when_ended()
folder = Path(folder)
settings = LaunchSettings.from_json(place)
sys.exit(launch(RunSpec.from_json(spec), settings, folder / "run", folder / "log", program or RUN))
"""


def launched(
    hosts: ssh_hosts.Hosts, spec: RunSpec, place: LaunchSettings, folder: Path, *program: str
) -> subprocess.Popen:
    """The run's launcher, on the first host."""
    command = [sys.executable, "-c", LAUNCHER, spec.to_json(), place.to_json(), str(folder), *program]
    return hosts.start(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@every_engine
def test_a_run_on_two_hosts_has_the_bits_of_one_on_this_machine(engine, hosts, data, tmp_path):
    spec, place = accuracy(engine, workers=3), over(hosts, 2, 1, data_root=str(data))
    there, here = (tmp_path / name for name in ("there", "here"))
    there.mkdir()
    process = launched(hosts, spec, place, there)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said + (there / "log").read_text()
    assert launch(spec, replace(place, by="local", hosts=()), here / "run", here / "log") == 0
    for one, other in zip(numbers(there / "run"), numbers(here / "run"), strict=True):
        pd.testing.assert_frame_equal(one, other)
    run = yaml.safe_load((there / "run" / "run.json").read_text())
    assert run["provenance"]["network"] == "host"


@every_engine
def test_a_timed_run_on_two_hosts_is_timed_in_every_launch(engine, hosts, data, tmp_path):
    training, how = Training("resnet20", batch=8, lr_steps=()), Measurement(launches=2, blocks=2, repeats=1)
    spec = RunSpec("timing", training, Scheme("topk", options={"ratio": 0.1}), Cluster(engine), how)
    process = launched(hosts, spec, over(hosts, 1, 1, data_root=str(data)), tmp_path)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said + (tmp_path / "log").read_text()
    table = pd.read_csv(tmp_path / "run" / "iterations.csv")
    assert set(zip(table["launch"], table["block"], strict=True)) == {(1, 1), (1, 2), (2, 1), (2, 2)}
    assert (table["iteration_s"] > 0).all()


def reported(folder: Path, process: subprocess.Popen) -> bool:
    """Whether both ranks have reported before the launcher ended."""
    ranks = "run.partial/*/rank*.json"
    until(lambda: len(list(folder.glob(ranks))) == 2 or process.poll() is not None)
    return process.poll() is None


@every_engine
def test_a_rank_that_fails_on_another_host_ends_all_and_is_shown(engine, hosts, tmp_path):
    place = over(hosts, 1, 1, data_root="")
    process = launched(hosts, accuracy(engine), place, tmp_path, *WORKER, "fails", "600")
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 1 and said.endswith("\nArithmeticError: broken on purpose\n"), said
    assert {path.name for path in tmp_path.iterdir()} == {"log"}
    assert until(lambda: not of_run(tmp_path))


@every_engine
@pytest.mark.parametrize("end, leave_after_s", [(signal.SIGTERM, 600), (signal.SIGKILL, 15)])
def test_nothing_on_any_host_outlives_the_launcher(engine, end, leave_after_s, hosts, tmp_path):
    process = launched(hosts, accuracy(engine), over(hosts, 1, 1), tmp_path, *WORKER, "goes on", f"{leave_after_s}")
    assert reported(tmp_path, process) and len(of_run(tmp_path)) >= 3
    process.send_signal(end)
    process.communicate(timeout=PATIENCE_S)
    assert until(lambda: not of_run(tmp_path)), of_run(tmp_path)


@every_engine
def test_a_run_that_is_asked_to_end_saves_on_all_hosts_and_goes_on(engine, hosts, data, tmp_path):
    place = over(hosts, 1, 1, data_root=str(data), checkpoint_every_s=600, interface="eth0")
    spec = accuracy(engine, steps=400, planner="all")  # steps enough to be asked in time, and quick ones
    process = launched(hosts, spec, place, tmp_path)
    assert reported(tmp_path, process)
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert checkpointed(tmp_path / "run"), (tmp_path / "log").read_text()
    process = launched(hosts, spec, place, tmp_path)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0 and "goes on after step " in said


REACH = """
import sys
from pathlib import Path
from dlgs_bench.launch import nodes
try:
    nodes.reach({sys.argv[1]: 1}, "cpu", 1, Path(sys.argv[2]))
except nodes.Refused as why:
    print(why)
"""


@pytest.mark.parametrize(
    "host, folder, expected",
    [
        ("10.77.0.9", ".", r"10.77.0.9: .*; give hosts that ssh reaches and that share this folder"),
        ("10.77.0.2", "no/such", ".*/no/such does not exist on 10.77.0.2; give hosts that share this folder"),
    ],
)
def test_a_host_that_cannot_take_part_is_one_line(hosts, host, folder, expected):
    process = hosts.start([sys.executable, "-c", REACH, host, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    (line,) = process.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert re.fullmatch(f"launch.hosts: {expected}", line), line
