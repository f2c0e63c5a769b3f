"""Workflows that fail, are killed or refuse their data, on real processes, in copies of the project."""

import json
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from support import ENVIRONMENT, ROOT, SMOKE, TINY, snakemake, until

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

RUNS = "results/tiny/runs/tested/accuracy"
BROKEN = '''"""Fails at its third step."""

from dataclasses import dataclass

from dlgs_bench.exchange import Bucket, Method, StepContext, Sum


@dataclass
class Broken(Method):
    exact_when = {}

    def exchange(self, bucket: Bucket, context: StepContext):
        if context.step == 3:
            raise ArithmeticError("broken on purpose")
        return (yield Sum(bucket.gradient))
'''


def test_a_failed_run_shows_its_log_and_leaves_no_result(tiny_project):
    (tiny_project / "methods" / "broken.py").write_text(BROKEN)
    target = f"{RUNS}/tiny-broken-seed0/points.csv"
    done = snakemake(tiny_project, ENVIRONMENT, target, *TINY, "methods=[none, broken]")
    assert done.returncode != 0
    assert "broken on purpose" in done.stdout + done.stderr
    assert not (tiny_project / target).exists()
    assert not list((tiny_project / "results").rglob("*.partial"))


def ranks_of(project: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if "dlgs_bench.training.run" in (process.info["cmdline"] or []) and process.info["cwd"] == str(project):
            found.append(process)
    return found


def test_a_killed_workflow_leaves_no_processes_and_the_same_command_goes_on(tiny_project):
    """A single target in a fresh folder ends without a report."""
    target = f"{RUNS}/tiny-none-seed0/points.csv"
    command, slowly = [target, *TINY, "checkpoint_every_s=0.1"], ENVIRONMENT | {"VECTORS_PAUSE_S": "5"}
    workflow = subprocess.Popen(
        ["snakemake", *command], cwd=tiny_project, env=slowly, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert until(lambda: (tiny_project / target).parent.with_suffix(".checkpoints").exists())
        second = snakemake(tiny_project, ENVIRONMENT, *command)
        assert "cannot be locked" in second.stderr, second.stderr
        assert workflow.poll() is None and ranks_of(tiny_project)
        workflow.send_signal(signal.SIGKILL)
        assert until(lambda: not ranks_of(tiny_project))
    finally:
        workflow.kill()
    done = snakemake(tiny_project, ENVIRONMENT, *command)
    assert done.returncode == 0 and "goes on after step" in done.stderr, done.stderr
    assert not (tiny_project / target).parent.with_suffix(".checkpoints").exists()
    assert re.search(r"^done: tables in \S+, figures in \S+/$", done.stdout, re.M)
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tiny_project / "results" / "tiny" / "report.html").exists()


STOPPED = {
    "not YAML": ("seeds=[0", "error: --config seeds: '[0' is not valid YAML; give it as in seeds=[0, 1]"),
    "not a date": ("name=2020-02-30", "error: --config name: '2020-02-30' is not valid YAML; give it as in"),
    "not valid": ("seeds=[0, -1]", "error: config/tiny.yaml and --config: seeds.1: -1 is not valid"),
    "not a folder": ("output={results: config/tiny.yaml}", "error: config/tiny.yaml and --config: output.results: "),
    "not on this machine": ("workers=1000", "error: config/tiny.yaml and --config: workers: 1000 processes on "),
}


def test_the_workflow_stops_before_any_run_without_a_traceback(tiny_project):
    """There is one mistake for each place where common.smk checks. test_config.py has more mistakes."""
    for setting, expected in STOPPED.values():
        done = snakemake(tiny_project, ENVIRONMENT, "--configfile", "config/tiny.yaml", "--config", setting)
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert next(line for line in said.splitlines() if line.startswith("error: ")).startswith(expected), said
        assert "Traceback" not in said and not (tiny_project / "results").exists()


def test_a_damaged_data_file_stops_before_any_run(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar10.npz").write_bytes(b"PK\x03\x04 damaged")
    output = f"output={{results: {tmp_path}, figures: {tmp_path}, report: {tmp_path}/r.html}}"
    data = f"data={{root: {tmp_path}/data, imagenet: ''}}"
    done = snakemake(ROOT, ENVIRONMENT, "--nolock", *SMOKE, output, data)
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


def test_imagenet_is_copied_before_it_is_read_and_damage_is_one_line(tiny_project, tmp_path, imagenet):
    root = tmp_path / "data"
    (tiny_project / "models" / "pooled.py").write_text(POOLED)
    data = f"data={{root: {root}, imagenet: {imagenet}/images}}"
    settings = [*TINY, data, "models={pooled: {batch: 8, epochs: 1, lr: 0.1}}"]

    def run(variant: str) -> subprocess.CompletedProcess:
        return snakemake(tiny_project, ENVIRONMENT, f"{RUNS}/pooled-{variant}-seed0/run.json", *settings)

    done = run("none")
    assert done.returncode == 0 and "(Rule: imagenet100)" in done.stderr, done.stderr[-3000:]
    assert json.loads((tiny_project / RUNS / "pooled-none-seed0" / "run.json").read_text())["train_samples"] == 200
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
