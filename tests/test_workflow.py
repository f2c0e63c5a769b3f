"""The workflow end to end, on real Horovod processes, in a copy of the project."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, copy_project, snakemake

from harness.launch import testbed
from harness.report.summary import PARTS

KINDS = ("accuracy", "timing")
SMOKE = ["--configfile", "config/smoke.yaml"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, environment) -> Path:
    """A copy of the project in which the smoke configuration has run."""
    project = copy_project(tmp_path_factory.mktemp("project"))
    done = snakemake(project, environment, *SMOKE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "runs done" in done.stderr
    return project


def planned(project: Path, environment: dict, *arguments: str) -> dict[str, int]:
    """What a dry run would do: rule -> number of jobs."""
    done = snakemake(project, environment, "-n", "--quiet", "rules", *arguments)
    assert done.returncode == 0, done.stderr
    return {
        rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.M) if rule != "total"
    }


def test_everything_is_there_and_a_second_call_says_that_there_is_nothing_to_do(smoke, environment):
    for name in ("table1.csv", "table1.md", "table1.tex", "table2.csv", "table2.md", "table2.tex", "report.html"):
        assert (smoke / "results" / "smoke" / name).stat().st_size > 100
    for n in ("05", "06", "11"):
        for kind in ("svg", "png"):
            assert (smoke / "figures" / "smoke" / f"figure{n}.{kind}").stat().st_size > 1000
    begun = time.monotonic()
    done = snakemake(smoke, environment, *SMOKE)
    assert "Nothing to be done" in done.stdout + done.stderr
    assert time.monotonic() - begun < 10
    assert not list(smoke.rglob("*.partial"))


def test_timed_runs_used_the_testbed_and_say_so(smoke):
    if testbed.available():
        pytest.skip(f"no testbed here: {testbed.available()}")
    folder = smoke / "results" / "smoke"
    networks = {kind: {r["network"] for r in csv.DictReader((folder / f"{kind}.csv").open())} for kind in KINDS}
    assert networks == {"accuracy": {"loopback"}, "timing": {"testbed"}}
    assert "testbed network, 1000 Mb/s links (measured " in (folder / "table2.md").read_text()


def test_editing_a_figure_script_redraws_that_figure_only(smoke, environment):
    script = smoke / "workflow" / "scripts" / "figures" / "figure05.py"
    text = script.read_text()
    try:
        script.write_text(text + "\n# edited\n")
        assert planned(smoke, environment, *SMOKE) == {"all": 1, "figure": 1}
    finally:
        script.write_text(text)
        os.utime(script, (0, 0))


def test_editing_a_method_repeats_its_own_runs_only(smoke, environment):
    method = smoke / "methods" / "lags.py"
    text = method.read_text()
    try:
        method.write_text(text + "\n# edited\n")
        jobs = planned(smoke, environment, *SMOKE)
        assert (jobs["accuracy"], jobs["timing"]) == (1, 1)
    finally:
        method.write_text(text)
        os.utime(method, (0, 0))


def example_method() -> str:
    """The method that CONTRIBUTING shows in full."""
    return re.search(r"```python\n(\"\"\"Random-k.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S).group(1)


def test_a_method_is_one_file(smoke, environment):
    """Found, tested, run, tabulated: with no other edit, and nothing else is run again."""
    source = example_method()
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    (smoke / "methods" / "randomk.py").write_text(source)
    jobs = planned(smoke, environment, *SMOKE)
    assert (jobs["accuracy"], jobs["timing"]) == (1, 1)
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/test_methods.py", "-k", "randomk"],
        cwd=smoke, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert tests.returncode == 0 and "passed" in tests.stdout, tests.stdout
    done = snakemake(smoke, environment, *SMOKE)
    assert done.returncode == 0, done.stderr[-3000:]
    for n in (1, 2):
        assert "randomk" in (smoke / "results" / "smoke" / f"table{n}.md").read_text()


def test_the_other_engine_runs_through_the_same_rules(smoke, environment):
    target = "results/smoke/runs/torch/accuracy/resnet20-lags-0.1-seed0/points.csv"
    done = snakemake(smoke, environment, target, *SMOKE, "--config", "engine=torch_dist", "name=torch")
    assert done.returncode == 0, done.stderr[-3000:]
    horovod = smoke / "results/smoke/runs/smoke/accuracy/resnet20-lags-0.1-seed0/points.csv"
    columns = ("step", "train_loss", "test_loss", "test_accuracy")
    rows = [[[row[c] for c in columns] for row in csv.DictReader(p.open())] for p in (smoke / target, horovod)]
    assert rows[0] == rows[1]  # two workers: the same bits on both engines


def test_a_server_is_a_process_more(smoke, environment):
    target = "results/smoke/runs/ps/timing/resnet20-dlgs-0.1-ps-weights-2workers-host"
    settings = ["--config", "topologies=[ps-weights]", "planner=layer", "name=ps", "network=host"]
    done = snakemake(smoke, environment, f"{target}/iterations.csv", *SMOKE, *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = list(csv.DictReader((smoke / target / "iterations.csv").open()))
    assert {row["variant"] for row in rows} == {"none", "dlgs"}
    assert all(float(row["received_bytes"]) > 4 * 269_722 for row in rows)  # weights, whatever was pushed


BROKEN = '''"""Fails at its third step."""

from dataclasses import dataclass

from harness.exchange.method import Bucket, Method, Sum


@dataclass
class Broken(Method):
    exact = True

    def exchange(self, bucket: Bucket, step: int):
        if step == 3:
            raise ArithmeticError("broken on purpose")
        return (yield Sum(bucket.gradient))
'''


def test_plans_reach_the_runs_and_predictions_are_made(smoke, environment):
    runs = smoke / "results/smoke/runs/smoke"
    plan = json.loads(next(runs.glob("plans/resnet20-dlgs-0.1-allgather-2workers-*.json")).read_text())
    timing = next(runs.glob("timing/resnet20-dlgs-0.1-allgather-*"))
    for folder in (runs / "accuracy/resnet20-dlgs-0.1-seed0", timing):
        run = json.loads((folder / "run.json").read_text())
        assert run["spec"]["groups"] == plan["groups"]
    best = min(c["iteration_s"] for c in plan["comparison"].values())
    assert plan["comparison"]["exact"]["iteration_s"] == best
    done = snakemake(smoke, environment, "studies", *SMOKE)
    assert done.returncode == 0, done.stderr[-3000:]
    trace = json.loads((timing / "trace.json").read_text())
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}
    assert all(e["dur"] >= 0 for e in trace["traceEvents"] if e["ph"] == "X")
    for rows in map(csv.DictReader, map(Path.open, runs.glob("timing/*/iterations.csv"))):
        for row in rows:  # eq. 2, plus optimizer and other
            assert sum(float(row[part]) for part in PARTS) == pytest.approx(float(row["iteration_s"]), rel=0.01)
    rows = list(csv.DictReader((smoke / "results" / "smoke" / "prediction.csv").open()))
    assert len(rows) >= 4 and all(float(r["predicted_s"]) > 0 and float(r["measured_s"]) > 0 for r in rows)


def test_a_failed_run_shows_its_log_and_leaves_no_result(smoke, environment):
    (smoke / "methods" / "broken.py").write_text(BROKEN)
    try:
        target = "results/smoke/runs/smoke/accuracy/resnet20-broken-seed0/points.csv"
        done = snakemake(smoke, environment, target, *SMOKE)
        assert done.returncode != 0
        assert "broken on purpose" in done.stdout + done.stderr
        assert not (smoke / target).exists()
        assert not list((smoke / "results").rglob("*.partial"))
    finally:
        (smoke / "methods" / "broken.py").unlink()


def test_a_killed_workflow_leaves_no_processes(smoke, environment):
    settings = [
        "--config",
        "name=killed",
        "accuracy={ratios: [0.1], evaluations: 2, test_images: 10000, final_test_images: 10000}",
    ]
    target = "results/smoke/runs/killed/accuracy/resnet20-none-seed0/points.csv"
    workflow = subprocess.Popen(
        ["snakemake", target, *SMOKE, *settings],
        cwd=smoke, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def workers() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            if "harness.training.run" in (process.info["cmdline"] or []) and process.info["cwd"] == str(smoke):
                found.append(process)
        return found

    def until(condition, seconds):
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(0.2)
        return condition()

    try:
        assert until(lambda: len(workers()) >= 2, 40)
        workflow.send_signal(signal.SIGKILL)
        assert until(lambda: not workers(), 15)
    finally:
        workflow.kill()
        subprocess.run(["snakemake", "--unlock", *SMOKE], cwd=smoke, env=environment, capture_output=True)


def test_a_damaged_data_file_stops_before_any_run(tmp_path, environment):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar10.npz").write_bytes(b"PK\x03\x04 damaged")
    output = f"output={{results: {tmp_path}, figures: {tmp_path}, report: {tmp_path}/r}}"
    data = f"data={{root: {tmp_path}/data, imagenet: ''}}"
    done = snakemake(ROOT, environment, "--nolock", *SMOKE, "--config", "name=damaged", output, data)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in said
    assert "error: " in said and "cifar10.npz: cannot be read" in said
    assert not list(tmp_path.glob("runs/*/*/*"))


def test_the_papers_configuration_lists_its_grid(environment):
    jobs = planned(ROOT, environment, "--nolock", "--configfile", "config/paper.yaml")
    assert (jobs["accuracy"], jobs["timing"]) == (36, 21)
