"""bench/gpu.py: every stage leaves its output and status whatever becomes of it, and a CPU runs the whole command."""

import csv
import io
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml
from support import CPU, ROOT, read, rows_of, until

sys.path.insert(0, str(ROOT / "bench"))
import gpu
import gpu_stages

from dlgs_bench.config import load as config
from dlgs_bench.data.cifar10 import Cifar10

pytestmark = pytest.mark.unit
LONG_S = 100


def stage(name: str, code: str, limit_s: float = LONG_S, **needs) -> gpu.Stage:
    return gpu.Stage(name, limit_s, [sys.executable, "-c", code], **needs)


def run(stages: list[gpu.Stage], folder: Path, budget_s: float = LONG_S) -> dict[str, dict]:
    rows = gpu.run(stages, folder, time.monotonic() + budget_s, "cpu", {"PYTHONUNBUFFERED": "1"})
    assert [row["stage"] for row in rows_of(folder / "stages.csv")] == [one.name for one in stages]
    return {row["stage"]: row for row in rows}


def archived(folder: Path) -> dict[str, str]:
    with tarfile.open(folder.with_name(f"{folder.name}.tar.gz")) as tar:
        return {Path(member.name).name: tar.extractfile(member).read().decode() for member in tar if member.isfile()}


@pytest.mark.slow
def test_a_stage_that_fails_or_is_cut_keeps_its_output_and_the_next_ones_run(tmp_path, capfd):
    folder = tmp_path / "gpu"
    table, later = folder / "cut.csv", folder / "later.csv"
    write = f"import pathlib; pathlib.Path({str(table)!r}).write_text('a,b')"
    wait = "try:\n time.sleep(100)\nexcept KeyboardInterrupt:\n print('told to end')"
    slow = f"import time\n{write}\nprint('begun', flush=True)\n{wait}"
    (folder / "checkpoints" / "topk").mkdir(parents=True)
    (folder / "checkpoints" / "topk" / "rank0").write_text("weights")
    (folder / "failing.csv").write_text("of an earlier call")
    rows = run(
        [
            stage("failing", "print('before'); raise SystemExit('why')"),
            stage("cut", slow, limit_s=3),
            stage("later", f"import pathlib; pathlib.Path({str(later)!r}).write_text('a')"),
            stage("skipping", "raise SystemExit(5)"),  # as pytest if all tests are skipped
        ],
        folder,
    )
    assert [row["status"] for row in rows.values()] == ["failed", "cut", "ok", "failed"]
    assert (rows["failing"]["exit_status"], rows["failing"]["why"]) == (1, "why")
    assert rows["cut"]["why"] == "told to end" and rows["cut"]["seconds"] >= 3
    found = archived(folder)
    assert set(found) == {
        "stages.csv", "failing.txt", "cut.txt", "cut.csv", "later.txt", "later.csv", "skipping.txt"
    }  # fmt: skip
    assert found["failing.txt"] == "failing on cpu\nbefore\nwhy\n" and found["cut.csv"] == "a,b"
    assert list(csv.DictReader(io.StringIO(found["stages.csv"])))[1]["status"] == "cut"
    assert "failing: failed: why" in capfd.readouterr().out


def runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
def test_nothing_of_a_stage_is_left_running(tmp_path, monkeypatch):
    """The stage ignores SIGINT, and so does the process that it has started."""
    monkeypatch.setattr(gpu, "GRACE_S", 0.2)
    ignoring = "import os, signal, subprocess, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    ignoring += "; print(os.getpid(), flush=True)"
    child = f"{ignoring}; time.sleep(100)"
    starting = stage("stubborn", f"{ignoring}; subprocess.run([sys.executable, '-c', {child!r}])")
    assert gpu.run_stage(starting, tmp_path / "out", 3, {}) == ("cut", -signal.SIGKILL)
    running = [int(line) for line in (tmp_path / "out").read_text().split()]
    assert len(running) == 2 and until(lambda: not any(map(runs, running)), timeout_s=10)


def test_a_stage_is_not_run_without_what_it_needs_or_without_time(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "GRACE_S", 0)
    needing = stage("needing", "print('ran')", modules="json PIL no_such_module", files=[tmp_path / "images.npz"])
    assert needing.missing() == ["no_such_module", str(tmp_path / "images.npz")]
    rows = run([needing, stage("late", "print('ran')")], tmp_path / "gpu", budget_s=gpu.LEAST_S / 2)
    assert [row["status"] for row in rows.values()] == ["not run", "not run"]
    assert rows["needing"]["why"].startswith("missing: no_such_module, ")
    assert rows["late"]["why"] == "the budget is spent"
    assert "ran" not in "".join(archived(tmp_path / "gpu").values()).split("\n")


def test_the_archives_have_at_most_their_size(tmp_path, capsys):
    folder = tmp_path / "gpu"
    (folder / "checkpoints" / "dlgs" / "7").mkdir(parents=True)
    (folder / "checkpoints" / "dlgs" / "7" / "rank0").write_bytes(b"0" * 1000)
    for name, size in (("small.csv", 10), ("large.txt", 10_000)):
        (folder / name).write_bytes(b"0" * size)
    assert gpu.archive(folder, most=5000) == ["large.txt"] and set(archived(folder)) == {"small.csv"}
    checkpoints = tmp_path / "gpu-checkpoint-dlgs.tar.gz"
    gpu.archive_checkpoints(folder)
    with tarfile.open(checkpoints) as tar:
        assert "gpu/checkpoints/dlgs/7/rank0" in tar.getnames()
    gpu.archive_checkpoints(folder, most=10)
    assert not checkpoints.exists() and "dlgs: no archive" in capsys.readouterr().out


def test_without_a_gpu_the_command_ends_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main([str(tmp_path / "gpu")]) == 2
    out, line = capsys.readouterr()
    assert not out and line.count("\n") == 1 and "cuda is not usable" in line and not list(tmp_path.iterdir())


def test_measured_times_are_part_of_a_valid_configuration():
    part = yaml.safe_load(gpu_stages.nodes({"resnet20": 7.512345, "resnet50": 123456.0}, "a machine, a date"))
    assert part == {"testbed": {"nodes": {"computation_ms": {"resnet20": 7.512, "resnet50": 123500.0}}}}
    values = config.load(read("smoke") | part, "measured").values
    assert values["testbed"]["nodes"]["computation_ms"]["resnet20"] == 7.512


def test_the_models_are_the_papers_at_its_batches():
    batches = {name: recipe["batch"] for name, recipe in gpu_stages.recipes().items()}
    assert batches == {"resnet20": 32, "vgg16": 32, "resnet50": 64}
    for model in gpu_stages.MODELS:
        training = gpu_stages.spec_of(model, "dlgs", "cuda", tiny=False).training
        assert (training.model, training.train_epochs, training.lr_steps) == (model, 140, (80, 120))
        assert (training.batch, training.lr) == (batches[model], gpu_stages.recipes()[model]["lr"])


@pytest.mark.slow
def test_training_continues_where_it_stopped(data, tmp_path):
    images, spec = Cifar10(data, CPU), gpu_stages.spec_of("resnet20", "dlgs", "cpu", tiny=True)
    whole = gpu_stages.train(spec, images, tmp_path / "whole", until=time.time() + 1000)
    assert [point["step"] for point in whole] == [2, 4]
    parts = []
    while len(parts) < 2:  # one step per call, since its time is over
        parts = gpu_stages.train(spec, images, tmp_path / "parts", until=0)
    for one, other in zip(whole, parts, strict=True):
        assert one | {"elapsed_s": 0} == other | {"elapsed_s": 0}


@pytest.mark.slow
def test_the_whole_command_runs_on_a_cpu(data, tmp_path):
    folder = tmp_path / "gpu"
    command = [sys.executable, str(ROOT / "bench" / "gpu.py"), str(folder), "--device", "cpu", "--tiny"]
    command += ["--data", str(data), "--budget-s", "5000"]  # other tests may run at the same time
    done = subprocess.run(command, capture_output=True, text=True)
    outputs = "".join(path.read_text() for path in folder.glob("*.txt"))
    assert done.returncode == 0, done.stdout + done.stderr + outputs
    assert done.stdout.startswith("gpu: missing: nothing\n")
    assert {row["status"] for row in rows_of(folder / "stages.csv")} == {"ok"}
    found = archived(folder)
    tables = {"stages.csv", "environment.csv", "times.csv", "selection.csv", "accuracy.csv"}
    assert set(found) == tables | {"tests.xml", "times.yaml"} | {f"{name}.txt" for name in gpu.STAGES}
    assert all("cpu (tiny)" in text for text in found.values())
    for name in tables - {"stages.csv"}:
        rows = rows_of(folder / name)
        assert rows and all({"device", "machine", "date", "commit", "driver", "torch"} <= row.keys() for row in rows)
    times = rows_of(folder / "times.csv")
    assert {row["model"] for row in times} == {"resnet20", "vgg16", "resnet50"}
    assert {row["part"] for row in times} == {"forward", "backward", "iteration"}
    trained = {*(("resnet20", method) for method in ("none", "topk", "lags", "dlgs")), ("vgg16", "none")}
    assert {(row["model"], row["method"]) for row in rows_of(folder / "accuracy.csv")} == trained
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"-".join(run) for run in trained}
    assert (tmp_path / "gpu-checkpoint-resnet20-dlgs.tar.gz").exists()  # VGG16's are too large for an archive
    assert not (tmp_path / "gpu-checkpoint-vgg16-none.tar.gz").exists()
