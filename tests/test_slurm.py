"""A real Slurm of one node: every run a job, with the bits of a local run, retried, and cancelled without a trace."""

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import slurm_node
import ssh_hosts
from conftest import copy_project, numbers, snakemake

from harness.engines import ENGINES

PLUGIN = "snakemake_executor_plugin_slurm"
GRID = ["--configfile", "config/smoke.yaml", "--config", "methods=[none, dlgs]", "timing={ratios: []}"]
PROFILE = ["--workflow-profile", "profiles/slurm"]
QUICKLY = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "3"]
SLURM = [*PROFILE, *QUICKLY, "--seconds-between-status-checks", "3"]
ON_SLURM = "launch={by: slurm, per_node: 2}"

needs_plugin = pytest.mark.skipif(
    not importlib.util.find_spec(PLUGIN), reason=f"no {PLUGIN.replace('_', '-')} here (environment.yml has it)"
)
needs_slurm = pytest.mark.skipif(bool(slurm_node.missing()), reason=slurm_node.missing())


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, environment):
    with slurm_node.cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found | {"PATH": environment["PATH"]}


def accuracy(project: Path) -> dict[str, list[pd.DataFrame]]:
    """Run -> its tables without times."""
    folders = (project / "results/smoke/runs/smoke/accuracy").glob("*/run.json")
    return {path.parent.name: numbers(path.parent) for path in folders}


def the_same(one: dict[str, list[pd.DataFrame]], other: dict[str, list[pd.DataFrame]]) -> None:
    assert one.keys() == other.keys() and len(one) == 2
    for name, tables in one.items():
        for left, right in zip(tables, other[name], strict=True):
            pd.testing.assert_frame_equal(left, right)


def queue(environment: dict) -> list[str]:
    """The jobs that there are, in the profile's words."""
    shown = ["squeue", "--noheader", "--format", "%i %j %T %k"]
    return subprocess.run(shown, env=environment, capture_output=True, text=True).stdout.splitlines()


def until(condition, seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.2)
    return bool(condition())


def of_project(project: Path) -> list[psutil.Process]:
    """The ranks of the project's runs, and what started them."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] == str(project) and "harness" in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


@needs_plugin
@needs_slurm
@pytest.mark.parametrize("engine", ENGINES)
def test_the_grid_has_the_same_bits_locally_by_slurm_and_by_ssh(engine, slurm, environment, tmp_path):
    ways = {"local": (environment, []), "slurm": (slurm, [*SLURM])}
    settings = {"local": [], "slurm": [ON_SLURM]}
    found = {}
    for way, (its, options) in ways.items():
        project = copy_project(tmp_path / way)
        done = snakemake(project, its, *options, *GRID, f"engine={engine}", *settings[way], timeout=900)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found[way] = accuracy(project)
        assert (project / "results/smoke/report.html").exists()
    the_same(found["slurm"], found["local"])
    if ssh_hosts.missing():
        return  # tests/test_launch_hosts.py says that it was skipped
    project = copy_project(tmp_path / "ssh")
    (tmp_path / "keys").mkdir()
    with ssh_hosts.hosts(2, tmp_path / "keys") as hosts:
        named = ", ".join(f"{name}:1" for name in hosts.names)
        process = hosts.start(
            ["snakemake", *GRID, f"engine={engine}", f"launch={{by: ssh, hosts: [{named}]}}"],
            cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        said = process.communicate(timeout=900)[0]
        assert process.returncode == 0, said[-3000:]
    the_same(accuracy(project), found["local"])
