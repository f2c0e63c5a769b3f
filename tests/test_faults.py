"""Faults, made for real: a rank that is stopped, a full disk, a network that drops, tables that are damaged."""

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
from conftest import PATIENCE_S, ROOT, checkpointed, read, until

from harness.config import load as config
from harness.engines import ENGINES
from harness.launch import quietly, testbed
from harness.launch.launcher import launch
from harness.report import runs
from harness.spec import Cluster, Measurement, Place, RunSpec, Scheme, Training

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BEFORE = ROOT / "workflow" / "before"
MAY_MOUNT = os.geteuid() == 0 and shutil.which("mount")
MAY_ENTER = os.geteuid() == 0 and shutil.which("nsenter")


def accuracy(engine: str, steps: int) -> RunSpec:
    return RunSpec(
        "accuracy", Training("resnet20", batch=8, train_steps=steps, lr_steps=()),
        Scheme("dlgs", options={"ratio": 0.1, "refresh_every": 4}), Cluster(engine),
        Measurement(evaluations=1, test_samples=20, final_test_samples=20),
    )  # fmt: skip


@contextmanager
def running(spec: RunSpec, folder: Path, **place):
    """The run in a thread; gives a list that has its status when it has ended."""
    found = []
    place = Place(**place)
    work = threading.Thread(target=lambda: found.append(launch(spec, place, folder / "run", folder / "log")))
    work.start()
    try:
        yield found
    finally:
        work.join(PATIENCE_S)


def process_of(folder: Path, rank: int, ended: list) -> int | None:
    """The process of a rank once it has made a step, or None if the run has ``ended``."""
    until(lambda: ended or list(folder.glob(f"run.partial/*/rank{rank}.json")))
    found = [file.read_text().split() for file in folder.glob(f"run.partial/*/rank{rank}.pid")]
    return int(found[0][1]) if found and not ended else None


def steps_of(folder: Path) -> int:
    """How far the run's first rank is."""
    (file,) = folder.glob("run.partial/*/rank0.json")
    return json.loads(until(file.read_text))[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_stopped_is_named_and_the_run_goes_on_from_its_checkpoint(engine, data, tmp_path, capsys, fault):
    place = {"data": {"cifar10": str(data)}, "checkpoint_every_s": 0.5}
    for limit_s in (20, 80, 320):  # on a busy machine ranks may need longer than the shortest to start
        with running(accuracy(engine, 10_000), tmp_path, **place, hung_after_s=limit_s) as ended:
            until(lambda ended=ended: ended or checkpointed(tmp_path / "run"))
            if process := process_of(tmp_path, 1, ended):
                os.kill(process, signal.SIGSTOP)
                stopped = time.monotonic()
        assert ended == [1]
        if named := f"rank 1 reported no progress for {limit_s} s, last at step " in capsys.readouterr().err:
            break
    assert named
    fault(f"rank stopped, `hung_after_s: {limit_s}`, {engine}", stopped)
    with running(accuracy(engine, 10_000), tmp_path, **place) as ended:
        os.kill(process_of(tmp_path, 1, ended), signal.SIGKILL)
    assert ended == [1]
    assert "goes on after step " in capsys.readouterr().err


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_is_stopped_for_a_while_delays_a_run(engine, data, tmp_path, fault):
    """Longer than Horovod's 30 s, after which Gloo would give it up by itself."""
    with running(accuracy(engine, 10_000), tmp_path, data={"cifar10": str(data)}) as ended:
        process = process_of(tmp_path, 1, ended)
        os.kill(process, signal.SIGSTOP)
        time.sleep(35)
        os.kill(process, signal.SIGCONT)
        before, again = steps_of(tmp_path), time.monotonic()
        assert until(lambda: ended or steps_of(tmp_path) > before) and not ended
        fault(f"rank stopped for 35 s, until the next step, {engine}", again)
        os.kill(process, signal.SIGKILL)
    assert ended == [1]


@pytest.fixture
def full(tmp_path):
    """A disk of so many KiB, as a folder."""
    if not MAY_MOUNT:
        pytest.skip("only root may mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()

    def mounted(kib: int, how: str = "rw") -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,{how}", "tmpfs", disk], check=True)
        return disk

    yield mounted
    subprocess.run(["umount", disk], check=True)


def test_a_disk_too_small_for_checkpoints_costs_the_checkpoints_alone(full, data, tmp_path, capsys):
    disk = full(300)
    place = Place(data={"cifar10": str(data)}, checkpoint_every_s=0.5)
    assert launch(accuracy("torch_dist", 60), place, disk / "run", disk / "log") == 0
    assert ": No space left on device" in capsys.readouterr().err
    assert len(pd.read_csv(disk / "run" / "iterations.csv")) == 60 and not runs.wrong(disk / "run")


@pytest.mark.parametrize("kib", [4, 16])
def test_a_disk_without_room_for_a_run_ends_it_in_one_line(kib, full, data, capsys, fault):
    disk, begun = full(kib), time.monotonic()
    assert launch(accuracy("torch_dist", 60), Place(data={"cifar10": str(data)}), disk / "run", disk / "log") == 1
    fault(f"disk of {kib} KiB, since the run's start", begun)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "no space" in said.lower() and str(disk) in said and not (disk / "run").exists()


@pytest.mark.parametrize("part, key", [("output", "results"), ("output", "figures"), ("data", "root")])
def test_a_disk_that_is_read_only_is_named_before_anything_runs(part, key, full):
    values = read("quick") | {part: read("quick")[part] | {key: str(full(64, "ro") / "below" / "it")}}
    with pytest.raises(config.ConfigError, match=f"{part}.{key}: nobody may write into "):
        config.check_places(config.load(values, "c").values, "c")


def test_a_project_on_a_read_only_disk_is_named_before_snakemake_writes_into_it(full):
    disk = full(64, "ro")
    mistake = runpy.run_path(str(BEFORE / "check.py"))["mistake"]
    assert mistake(["-n", "-d", str(disk)]).startswith(f"{disk}: nobody may write here")


def started(program: str) -> list[str]:
    """A shell that becomes this Python program as the workflow's rules start it."""
    return ["bash", "-c", f"exec {quietly.beginning(BEFORE)} {shlex.quote(sys.executable)} -c {shlex.quote(program)}"]


def test_ctrl_c_at_any_moment_of_pythons_start_leaves_no_traceback():
    for moment in range(40):  # most of them before Python has read its first module
        process = subprocess.Popen(started(f"import time; time.sleep({PATIENCE_S})"), stderr=subprocess.PIPE, text=True)
        time.sleep(0.002 * moment)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE_S)[1]
        assert (process.returncode, said) == (-signal.SIGINT, "")


def test_a_program_that_ignores_ctrl_c_still_does():
    command = started("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    ignoring = ["bash", "-c", "trap '' INT; \"$@\"", "bash", *command]
    assert subprocess.run(command).returncode == -signal.SIGINT and subprocess.run(ignoring).returncode == 0


@pytest.mark.skipif(bool(testbed.available()), reason=f"no testbed here: {testbed.available()}")
@pytest.mark.skipif(not MAY_ENTER, reason="only root may change the links of a testbed")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_network_that_drops_for_ten_seconds_delays_a_run(engine, data, tmp_path, fault):
    training, links = Training("resnet20", batch=8), {"network": "testbed", "rates_mbit": (200.0, 200.0)}
    scheme = Scheme("dlgs", options={"ratio": 0.1})
    spec = RunSpec("timing", training, scheme, Cluster(engine, **links), Measurement(blocks=60, repeats=1))
    with running(spec, tmp_path, data={"cifar10": str(data)}) as ended:
        inside = ["nsenter", "-t", str(process_of(tmp_path, 1, ended)), "-n", "ip", "link", "set", "eth0"]
        subprocess.run([*inside, "down"], check=True)
        time.sleep(10)
        subprocess.run([*inside, "up"], check=True)
        back, done = time.monotonic(), steps_of(tmp_path)
        until(lambda: ended or steps_of(tmp_path) > done)
        fault(f"network down for 10 s, until the next step, {engine}", back)
    assert ended == [0]
    waited = pd.read_csv(tmp_path / "run" / "iterations.csv")["iteration_s"]
    assert waited.median() < 5 < waited.max()


def test_the_page_of_faults_names_tests_that_exist():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "config" / "faults.md").read_text()))
    source = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    assert len(named) > 20 and named <= set(re.findall(r"^def (test_\w+)", source, re.M))


def test_no_duration_is_read_from_a_clock_that_may_jump():
    files = [*(ROOT / "harness").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")]
    assert len(files) > 100
    jumps = re.compile(r"\btime\.time\(|create_time|boot_time")
    assert not [path for path in files if jumps.search(path.read_text())]
