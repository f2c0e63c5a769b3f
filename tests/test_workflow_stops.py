"""Workflows that fail, are killed or refuse their data, on real processes, in copies of the project."""

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, SMOKE, copy_project, snakemake, until

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


@pytest.fixture
def project(tmp_path) -> Path:
    return copy_project(tmp_path / "project")


BROKEN = '''"""Fails at its third step."""

from dataclasses import dataclass

from harness.exchange import At, Bucket, Method, Sum


@dataclass
class Broken(Method):
    exact_when = {}

    def exchange(self, bucket: Bucket, at: At):
        if at.step == 3:
            raise ArithmeticError("broken on purpose")
        return (yield Sum(bucket.gradient))
'''


def test_a_failed_run_shows_its_log_and_leaves_no_result(project, environment):
    (project / "methods" / "broken.py").write_text(BROKEN)
    target = "results/smoke/runs/tested/accuracy/resnet20-broken-seed0/points.csv"
    done = snakemake(project, environment, target, *SMOKE)
    assert done.returncode != 0
    assert "broken on purpose" in done.stdout + done.stderr
    assert not (project / target).exists()
    assert not list((project / "results").rglob("*.partial"))


def test_a_killed_workflow_leaves_no_processes_and_the_same_command_goes_on(project, environment):
    target = "results/smoke/runs/killed/accuracy/resnet20-none-seed0/points.csv"
    command = [target, *SMOKE, "name=killed", "checkpoint_every_s=0.1", "models={resnet20: {train_epochs: 0.2}}"]
    workflow = subprocess.Popen(
        ["snakemake", *command], cwd=project, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def workers() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            if "harness.training.run" in (process.info["cmdline"] or []) and process.info["cwd"] == str(project):
                found.append(process)
        return found

    try:
        assert until(lambda: (project / target).parent.with_suffix(".checkpoints").exists())
        second = snakemake(project, environment, *command)
        assert "cannot be locked" in second.stderr, second.stderr
        workflow.send_signal(signal.SIGKILL)
        assert until(lambda: not workers())
    finally:
        workflow.kill()
    done = snakemake(project, environment, *command)
    assert done.returncode == 0 and "goes on after step" in done.stderr, done.stderr
    assert not (project / target).parent.with_suffix(".checkpoints").exists()


def test_one_target_in_a_fresh_folder_ends_without_a_report(project, environment):
    target = "results/smoke/runs/tested/calibration/layers/resnet20-2workers/layers.csv"
    done = snakemake(project, environment, target, *SMOKE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^done: tables in \S+, figures in \S+/$", done.stdout, re.M)
    assert "Traceback" not in done.stdout + done.stderr
    assert not (project / "results" / "smoke" / "report.html").exists()


def test_a_damaged_data_file_stops_before_any_run(tmp_path, environment):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar10.npz").write_bytes(b"PK\x03\x04 damaged")
    output = f"output={{results: {tmp_path}, figures: {tmp_path}, report: {tmp_path}/r.html}}"
    data = f"data={{root: {tmp_path}/data, imagenet: ''}}"
    done = snakemake(ROOT, environment, "--nolock", *SMOKE, output, data)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in said
    assert "error: " in said and "cifar10.npz: cannot be read" in said
    assert not list(tmp_path.glob("runs/*/*/*"))


POOLED = '''"""A linear model of ImageNet's images."""

from torch import nn
from torch.nn import functional as F

TITLE = "Pooled"
DATA = "imagenet100"
loss = F.cross_entropy


def build():
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(3 * 4 * 4, 100))
'''


def test_imagenet_is_copied_before_it_is_read_and_damage_is_one_line(project, tmp_path, environment, imagenet):
    root = tmp_path / "data"
    (project / "models" / "pooled.py").write_text(POOLED)
    data = f"data={{root: {root}, imagenet: {imagenet}/images}}"
    settings = [*SMOKE, "methods=[none, topk]", data, "models={pooled: {batch: 8, epochs: 1, lr: 0.1}}"]

    def run(variant: str) -> subprocess.CompletedProcess:
        runs = "results/smoke/runs/tested/accuracy"
        return snakemake(project, environment, f"{runs}/pooled-{variant}-seed0/run.json", *settings)

    done = run("none")
    assert done.returncode == 0 and "(Rule: imagenet100)" in done.stderr, done.stderr[-3000:]
    with (root / "imagenet100" / "train.npy").open("r+b") as file:
        file.seek(-1000, 2)
        file.write(bytes(999))  # of the last image
    done = run("topk-0.1")
    assert done.returncode != 0 and "(Rule: imagenet100)" not in done.stderr
    damaged = r"train.npy: image 199 is damaged; delete the folder and run again; more in \S+$"
    assert re.search(damaged, done.stderr, re.M), done.stderr[-3000:]
    assert "Traceback" not in done.stdout + done.stderr
    (root / "imagenet100" / "val.npy").unlink()
    done = run("topk-0.1")
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in said
    assert re.search(r"^error: \S+val.npy: cannot be read .*; delete the folder and run again$", said, re.M)
