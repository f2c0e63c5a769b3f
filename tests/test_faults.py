"""Faults, made for real: a rank that is stopped, a full disk, a network that drops, tables that are damaged."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support import PATIENCE_S, ROOT, checkpointed, every_engine, launch_tiny, read, until

from dlgs_bench import engines
from dlgs_bench.config import load as config
from dlgs_bench.launch.launcher import launch
from dlgs_bench.report import check_run
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.testbed import testbed

engine, root, slow, unit = (getattr(pytest.mark, name) for name in ("engine", "root", "slow", "unit"))
MAY_MOUNT = os.geteuid() == 0 and shutil.which("mount")
MAY_ENTER = os.geteuid() == 0 and shutil.which("nsenter")
WITHOUT_END = 100_000  # steps: the run is stopped before


def accuracy(engine: str, steps: int = WITHOUT_END) -> RunSpec:
    return RunSpec(
        "accuracy", Training("tiny", "vectors", batch=8, train_steps=steps, lr_steps=()),
        Scheme("dlgs", options={"ratio": 0.1, "refresh_every": 4}), Cluster(engine),
        Measurement(evaluations=1, test_samples=20, final_test_samples=20),
    )  # fmt: skip


@contextmanager
def running(project: Path, spec: RunSpec, folder: Path, **place):
    """The run in a thread. Yields a list that gets the run's status when the run ends."""
    ended = []
    work = threading.Thread(target=lambda: ended.append(launch_tiny(project, spec, folder / "run", **place)))
    work.start()
    try:
        yield ended
    finally:
        work.join(PATIENCE_S)


def process_of(folder: Path, rank: int, ended: list) -> int:
    """The process of a rank once it has made a step."""
    until(lambda: ended or list(folder.glob(f"run.partial/*/rank{rank}.json")))
    assert not ended
    (file,) = folder.glob(f"run.partial/*/rank{rank}.pid")
    return int(file.read_text().split()[1])


def steps_of(folder: Path) -> int:
    """How far the run's first rank is."""
    (file,) = folder.glob("run.partial/*/rank0.json")
    return json.loads(until(file.read_text))[0]


@engine
@slow
@every_engine
def test_a_rank_that_is_stopped_delays_a_run_until_a_timeout_ends_it(
    engine, tiny_source, tmp_path, capsys, monkeypatch, fault
):
    """A rank that stops for a while only delays the run. After ``hang_timeout_s`` the error names it. An engine gives
    up after its own timeout, which is a week by default. Each time the same command continues from the checkpoint."""
    spec, place, begun = accuracy(engine), {"checkpoint_every_s": 0.5}, time.monotonic()
    with running(tiny_source, spec, tmp_path, **place) as ended:
        process = process_of(tmp_path, 1, ended)
        until(lambda: ended or checkpointed(tmp_path / "run"))
        start_s = time.monotonic() - begun
        os.kill(process, signal.SIGSTOP)
        time.sleep(4)
        os.kill(process, signal.SIGCONT)
        before, again = steps_of(tmp_path), time.monotonic()
        assert until(lambda: ended or steps_of(tmp_path) > before) and not ended
        fault(f"rank stopped for 4 s, until the next step, {engine}", again)
        os.kill(process, signal.SIGKILL)
    assert ended == [1]

    limit_s = round(5 + 2 * start_s)  # ranks that still start have reported no progress either
    with running(tiny_source, spec, tmp_path, **place, hang_timeout_s=limit_s) as ended:
        process = process_of(tmp_path, 1, ended)
        os.kill(process, signal.SIGSTOP)
        stopped = time.monotonic()
    said = capsys.readouterr().err
    assert ended == [1] and time.monotonic() - stopped >= limit_s - 1
    assert "goes on after step " in said
    assert f"rank 1 reported no progress for {limit_s} s, last at step " in said
    fault(f"rank stopped, until `hang_timeout_s` and the end, less `hang_timeout_s`, {engine}", stopped + limit_s)

    timeout_s = round(2 + start_s)  # ranks that start wait for each other too
    monkeypatch.setenv("DLGS_BENCH_ENGINE_TIMEOUT_S", f"{timeout_s}")
    monkeypatch.setattr(engines, "TIMEOUT_S", timeout_s)
    with running(tiny_source, spec, tmp_path, **place) as ended:
        os.kill(process_of(tmp_path, 1, ended), signal.SIGSTOP)
    said = capsys.readouterr().err
    assert ended == [1] and "goes on after step " in said and "reported no progress" not in said


@pytest.fixture
def full(tmp_path):
    """A full disk of ``kib`` KiB, as a folder."""
    if not MAY_MOUNT:
        pytest.skip("only root may mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()

    def mounted(kib: int, how: str = "rw") -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,{how}", "tmpfs", disk], check=True)
        return disk

    yield mounted
    subprocess.run(["umount", disk], check=True)


@root
@slow
def test_a_disk_too_small_for_checkpoints_costs_the_checkpoints_alone(full, data, tmp_path, capsys):
    disk, spec = full(300), accuracy("torch_dist", 60)
    spec = replace(spec, training=replace(spec.training, model="resnet20", data="cifar10"))  # checkpoints of 2 MB
    place = LaunchSettings(data_root=str(data), checkpoint_every_s=0.5)
    assert launch(spec, place, disk / "run", disk / "log") == 0
    assert ": No space left on device" in capsys.readouterr().err
    assert len(pd.read_csv(disk / "run" / "iterations.csv")) == 60 and not check_run.problem(disk / "run")


@root
@slow
@pytest.mark.parametrize("kib", [4, 16])
def test_a_disk_without_room_for_a_run_ends_it_in_one_line(kib, full, tiny_source, capsys, fault):
    disk, begun = full(kib), time.monotonic()
    assert launch_tiny(tiny_source, accuracy("torch_dist", 60), disk / "run") == 1
    fault(f"disk of {kib} KiB, since the run's start", begun)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "no space" in said.lower() and str(disk) in said and not (disk / "run").exists()


@root
@pytest.mark.parametrize("part, key", [("output", "results"), ("output", "figures"), ("data", "root")])
def test_a_disk_that_is_read_only_is_named_before_anything_runs(part, key, full):
    values = read("quick") | {part: read("quick")[part] | {key: str(full(64, "ro") / "below" / "it")}}
    with pytest.raises(config.ConfigError, match=f"{part}.{key}: .* is not writable"):
        config.check_outputs_writable(config.load(values, "c").values, "c")


@root
@slow
@pytest.mark.skipif(bool(testbed.why_unavailable()), reason=f"no testbed here: {testbed.why_unavailable()}")
@pytest.mark.skipif(not MAY_ENTER, reason="only root may change the links of a testbed")
@every_engine
def test_a_network_that_drops_for_some_seconds_delays_a_run(engine, tiny_source, tmp_path, monkeypatch, fault):
    monkeypatch.setenv("VECTORS_PAUSE_S", "0.05")
    links = {"network": "testbed", "rates_mbit": (200.0, 200.0)}
    scheme = Scheme("dlgs", options={"ratio": 0.1})
    cluster, blocks = Cluster(engine, **links), Measurement(blocks=60, repeats=1)
    spec = RunSpec("timing", Training("tiny", "vectors", batch=8), scheme, cluster, blocks)
    with running(tiny_source, spec, tmp_path) as ended:
        inside = ["nsenter", "-t", str(process_of(tmp_path, 1, ended)), "-n", "ip", "link", "set", "eth0"]
        subprocess.run([*inside, "down"], check=True)
        time.sleep(4)
        subprocess.run([*inside, "up"], check=True)
        back, done = time.monotonic(), steps_of(tmp_path)
        until(lambda: ended or steps_of(tmp_path) > done)
        fault(f"network down for 4 s, until the next step, {engine}", back)
    assert ended == [0]
    waited = pd.read_csv(tmp_path / "run" / "iterations.csv")["iteration_s"]
    assert waited.median() < 3 < waited.max()


@unit
def test_no_duration_is_read_from_a_clock_that_may_jump():
    files = [*(ROOT / "dlgs_bench").rglob("*.py"), *(ROOT / "workflow").rglob("*.py")]
    assert len(files) > 100
    jumps = re.compile(r"\btime\.time\(|create_time|boot_time")
    assert not [path for path in files if jumps.search(path.read_text())]
