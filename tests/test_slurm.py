"""A real Slurm of one node: every run a job, with the bits of a local run, retried, and cancelled without a trace."""

import importlib.util
import re
import signal
import subprocess
from pathlib import Path

import pandas as pd
import psutil
import pytest
import slurm_node
import ssh_hosts
from support import (
    ENVIRONMENT,
    PATIENCE_S,
    ROOT,
    WORKFLOW_TIMEOUT_S,
    alone,
    checkpointed,
    clone,
    edit,
    every_engine,
    numbers,
    read,
    snakemake,
    until,
)  # fmt: skip

from dlgs_bench.config import load as config
from dlgs_bench.spec import Cluster, LaunchSettings, RunSpec

pytestmark = [pytest.mark.root, pytest.mark.slow]

PLUGIN = "snakemake_executor_plugin_slurm"
GRID = ["--configfile", "config/tiny.yaml", "--config", "methods=[none, dlgs]", "timing={ratios: []}"]
PROFILE = ["--workflow-profile", "profiles/slurm"]
SLURM = [*PROFILE, "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "3"]
SLURM += ["--seconds-between-status-checks", "3"]
ON_SLURM = "launch={by: slurm, per_node: 2}"

needs_plugin = pytest.mark.skipif(
    not importlib.util.find_spec(PLUGIN), reason=f"no {PLUGIN.replace('_', '-')} here (environment.yml has it)"
)
needs_slurm = pytest.mark.skipif(bool(slurm_node.missing()), reason=slurm_node.missing() or "")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with alone("slurm"), slurm_node.cluster(tmp_path_factory.mktemp("slurm")):
        yield ENVIRONMENT


def accuracy(project: Path) -> dict[str, list[pd.DataFrame]]:
    """Run -> its tables without times."""
    folders = (project / "results/tiny/runs/tiny/accuracy").glob("*/run.json")
    return {path.parent.name: numbers(path.parent) for path in folders}


def the_same(one: dict[str, list[pd.DataFrame]], other: dict[str, list[pd.DataFrame]]) -> None:
    assert one.keys() == other.keys() and len(one) == 2
    for name, tables in one.items():
        for left, right in zip(tables, other[name], strict=True):
            pd.testing.assert_frame_equal(left, right)


def queue(environment: dict) -> list[str]:
    """The jobs in Slurm's queue, as the profile lists them."""
    shown = ["squeue", "--noheader", "--format", "%i %j %T %k"]
    return subprocess.run(shown, env=environment, capture_output=True, text=True).stdout.splitlines()


def of_project(project: Path) -> list[psutil.Process]:
    """The ranks of the project's runs, and what started them."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cwd"] == str(project) and "dlgs_bench" in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


@needs_plugin
@needs_slurm
@every_engine
def test_the_grid_has_the_same_bits_locally_by_slurm_and_by_ssh(engine, slurm, tiny_source, tmp_path):
    runs = [f"results/tiny/runs/tiny/accuracy/tiny-{run}-seed0/points.csv" for run in ("none", "dlgs-0.1")]
    ways = {"local": (ENVIRONMENT, runs, []), "slurm": (slurm, SLURM, [ON_SLURM])}
    found = {}
    for way, (its, options, settings) in ways.items():
        project = clone(tiny_source, tmp_path / way)
        done = snakemake(project, its, *options, *GRID, f"engine={engine}", *settings)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found[way] = accuracy(project)
    assert (tmp_path / "slurm" / "results/tiny/report.html").exists()
    the_same(found["slurm"], found["local"])
    if not ssh_hosts.missing():  # otherwise tests/test_launch_hosts.py says that it was skipped
        project = clone(tiny_source, tmp_path / "ssh")
        by_ssh(project, tmp_path / "keys", [*runs, *GRID, f"engine={engine}"])
        the_same(accuracy(project), found["local"])


def by_ssh(project: Path, keys: Path, command: list[str]) -> None:
    """Run a workflow whose processes are started by ssh on two hosts."""
    keys.mkdir()
    with ssh_hosts.hosts(2, keys) as hosts:
        named = ", ".join(f"{name}:1" for name in hosts.names)
        process = hosts.start(
            ["snakemake", *command, f"launch={{by: ssh, hosts: [{named}]}}"],
            cwd=project, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        said = process.communicate(timeout=WORKFLOW_TIMEOUT_S)[0]
        assert process.returncode == 0, said[-3000:]


LONG = ["--configfile", "config/tiny.yaml", "--config", "methods=[none]", "timing={ratios: []}"]
LONG += ["models={tiny: {train_epochs: 1000, epochs: 1000}}", "checkpoint_every_s=1", ON_SLURM]
SLOWLY = {"VECTORS_PAUSE_S": "0.1"}
POINTS = "results/tiny/runs/tiny/accuracy/tiny-none-seed0/points.csv"


def submitted(project: Path, environment: dict) -> subprocess.Popen:
    """A workflow with one run, far too long to wait for, which has saved a checkpoint on Slurm."""
    process = subprocess.Popen(
        ["snakemake", POINTS, *SLURM, *LONG], cwd=project, env=environment | SLOWLY,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if not until(lambda: saved(project) or process.poll() is not None) or process.poll() is not None:
        process.kill()
        raise AssertionError(process.communicate()[0][-3000:])
    return process


def saved(project: Path) -> int:
    """The step of the newest checkpoint."""
    return checkpointed((project / POINTS).parent)


def logs(project: Path) -> str:
    """The logs of the jobs, in their order."""
    files = sorted((project / ".snakemake/slurm_logs").rglob("*.log"), key=lambda path: int(path.stem))
    return "\n".join(path.read_text() for path in files)


@needs_plugin
@needs_slurm
def test_a_run_that_fails_is_retried_from_its_checkpoint_and_a_cancelled_one_leaves_nothing(slurm, tiny_project):
    project = tiny_project
    process = submitted(project, slurm)
    (job,) = queue(slurm)
    assert re.fullmatch(r"\d+ dlgs-bench_\S+ RUNNING rule_accuracy_wildcards_tiny-none-seed0", job), job
    (rank,) = (project / "results").rglob("rank1.pid")
    psutil.Process(int(rank.read_text().split()[1])).kill()
    assert until(lambda: "goes on after step" in logs(project), WORKFLOW_TIMEOUT_S), logs(project)[-3000:]
    assert "rank 1, a worker, has died" in logs(project)
    before = saved(project)
    process.send_signal(signal.SIGINT)
    assert until(lambda: not of_project(project)), of_project(project)
    said = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode != 0, said
    assert until(lambda: not queue(slurm) and not of_project(project)), (queue(slurm), of_project(project))
    assert not list(project.rglob("*.partial")) and saved(project) >= before > 0


@needs_slurm
@every_engine
def test_a_job_of_another_size_is_refused_in_one_line(engine, slurm, tmp_path):
    spec, place = RunSpec("accuracy", cluster=Cluster(engine, workers=3)), LaunchSettings(by="slurm")
    command = ["python", "-m", "dlgs_bench.launch", spec.to_json(), place.to_json()]
    command += [str(tmp_path / "run"), str(tmp_path / "log")]
    alone = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    done = subprocess.run(["srun", "--ntasks=1", *command], cwd=ROOT, env=slurm, capture_output=True, text=True)
    for one, expected in ((alone, "this is not a Slurm job"), (done, "the Slurm job has 1 tasks, the run 3 processes")):
        assert one.returncode and f"accuracy none: launch.by: {expected}" in one.stderr, one.stderr
        assert "Traceback" not in one.stderr and not list(tmp_path.iterdir())


@needs_plugin
def test_the_dry_run_of_the_paper_asks_for_each_run_what_it_takes(tiny_project):
    rules = tiny_project / "workflow/rules/runs.smk"
    # Without a message Snakemake prints all of a job.
    edit(rules, '    message:\n        "{rule}: {wildcards.run}"\n', "")
    paper = ["--configfile", "config/paper.yaml"]
    done = snakemake(tiny_project, ENVIRONMENT, *PROFILE, *paper, "-n", "--quiet", "progress")
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    jobs = re.findall(
        r"^rule (\w+):\n(?:    .*\n)*?    wildcards: run=(\S+)\n(?:    .*\n)*?    resources: (.*)$", shown, re.M
    )
    asked = {(rule, run): dict(part.split("=", 1) for part in resources.split(", ")) for rule, run, resources in jobs}
    runs = config.load(read("paper"), "config/paper.yaml").runs
    assert {f"{rule}/{run}" for rule, run in asked} >= runs.keys()
    assert {rule for rule, _ in asked} == {"accuracy", "timing", "calibrate_layers", "calibrate_exchanges"}
    for (rule, run), resources in asked.items():
        sizes = {"nodes": "3", "tasks": "3", "gpu": "3", "tasks_per_gpu": "0", "cpus_per_task": "4", "mpi": "srun"}
        assert resources | sizes == resources, run
        assert ("--exclusive" in resources["slurm_extra"]) == (rule != "accuracy"), run
    hours = {model: int(asked["accuracy", f"{model}-none-seed0"]["runtime"]) / 60 for model in ("resnet20", "resnet50")}
    memory = {model: int(asked["accuracy", f"{model}-none-seed0"]["mem_mb"]) for model in ("resnet20", "resnet50")}
    assert hours["resnet20"] < 1 < hours["resnet50"] and memory["resnet20"] < memory["resnet50"]
