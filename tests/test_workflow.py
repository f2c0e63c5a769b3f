"""The workflow end to end, on real Horovod processes, in a copy of the project."""

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, copy_project, snakemake, until

from harness.launch import testbed
from harness.report.summary import MEASURED

KINDS = ("accuracy", "timing")
TABLES = ("table1", "table2", "claims")
# More values may follow. The report must see the name: under the configuration's own there are no runs.
SMOKE = ["--configfile", "config/smoke.yaml", "--config", "name=tested"]
LINKS = "host" if testbed.available() else "proportional"


@pytest.fixture(scope="module")
def made(tmp_path_factory, environment) -> Path:
    """A copy of the project, with the paper's methods alone, in which the smoke configuration has run."""
    project = copy_project(tmp_path_factory.mktemp("project"))
    for path in (project / "methods").glob("*.py"):
        if path.stem not in ALL:
            path.unlink()
    done = snakemake(project, environment, *SMOKE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "runs done" in done.stderr
    assert re.search(r"minutes of its runs: accuracy \d+:\d\d, .*timing \d+:\d\d", done.stdout)
    return project


@pytest.fixture
def smoke(made, tmp_path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(made, tmp_path / "project", symlinks=True))


def planned(project: Path, environment: dict, *arguments: str) -> set[str]:
    """What a dry run would do: the jobs' messages."""
    done = snakemake(project, environment, *arguments, "-n", "--quiet", "progress")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^Job \d+: (.*)$", done.stdout + done.stderr, re.M))


def rows_of(path: Path) -> list[dict]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_everything_is_there_and_a_second_call_says_that_there_is_nothing_to_do(smoke, environment):
    for name in (*(f"{table}.{kind}" for table in TABLES for kind in ("csv", "md", "tex")), "report.html"):
        assert (smoke / "results" / "smoke" / name).stat().st_size > 100
    for n in ("05", "06", "11"):
        for kind in ("svg", "png"):
            assert (smoke / "figures" / "smoke" / f"figure{n}.{kind}").stat().st_size > 1000
    done = snakemake(smoke, environment, *SMOKE)
    assert "Nothing to be done" in done.stdout + done.stderr
    assert not list(smoke.rglob("*.partial"))


def test_timed_runs_used_the_testbed_and_say_so(smoke):
    if testbed.available():
        pytest.skip(f"no testbed here: {testbed.available()}")
    folder = smoke / "results" / "smoke"
    networks = {kind: {row["network"] for row in rows_of(folder / f"{kind}.csv")} for kind in KINDS}
    assert networks == {"accuracy": {"loopback"}, "timing": {"testbed"}}
    rate = json.loads((folder / "runs/tested/calibration/rates/resnet20-2workers.json").read_text())["rate_mbit"]
    assert f"testbed network, {rate:g} Mb/s links (measured " in (folder / "table2.md").read_text()
    assert {float(row["rate_mbit"]) for row in rows_of(folder / "timing.csv")} == {rate}


def test_plans_reach_the_runs_and_studies_are_made(smoke, environment):
    folder = smoke / "results/smoke/runs/tested"
    plan = json.loads(next(folder.glob("plans/resnet20-dlgs-0.1-allgather-2workers-*.json")).read_text())
    timing = next(folder.glob("timing/resnet20-dlgs-0.1-allgather-*"))
    assert json.loads((timing / "run.json").read_text())["spec"]["scheme"]["groups"] == plan["groups"]
    learnt = json.loads((folder / "accuracy/resnet20-dlgs-0.1-seed0/run.json").read_text())["spec"]["scheme"]
    assert learnt["planner"] == "size" and "groups" not in learnt  # the same on every machine
    best = min(c["iteration_s"] for c in plan["comparison"].values())
    assert plan["comparison"]["exact"]["iteration_s"] == best
    # Without LAGS, whose code runs as LAGS, adaptive. So DLGS has nothing beside it where advice is checked.
    done = snakemake(smoke, environment, "studies", *SMOKE, "methods=[none, topk, lags_adaptive, dlgs]")
    assert done.returncode == 0, done.stderr[-3000:]
    trace = json.loads((timing / "trace.json").read_text())
    assert {e["ph"] for e in trace["traceEvents"]} == {"M", "X"}
    assert all(e["dur"] >= 0 for e in trace["traceEvents"] if e["ph"] == "X")
    for row in (row for path in folder.glob("timing/*/iterations.csv") for row in rows_of(path)):
        parts = sum(float(row[part]) for part in MEASURED)  # eq. 2, plus optimizer and other
        assert parts == pytest.approx(float(row["iteration_s"]), rel=0.01)
    rows = rows_of(smoke / "results" / "smoke" / "prediction.csv")
    assert len(rows) >= 4 and all(float(r["predicted_s"]) > 0 and float(r["measured_s"]) > 0 for r in rows)
    if not testbed.available():
        check_hybrids(rows_of(smoke / "results" / "smoke" / "hybrid.csv"))


def check_hybrids(rows: list[dict]) -> None:
    """ResNet-20 on 2 workers by every way: parts that add up, and the bytes of the formulas."""
    assert {row["workers"] for row in rows if not row["iteration_s"]} == {"8"}  # predicted only
    assert all(float(row["predicted_s"]) > 0 for row in rows)
    rows = [row for row in rows if row["iteration_s"]]
    for row in rows:
        parts = sum(
            float(row[f"{part}_s"]) for part in ("computing", "features", "columns", "input_gradients", "gradients")
        )
        assert parts == pytest.approx(float(row["iteration_s"]), rel=0.01)
    sent = {row["way"]: (row["sender"], row["samples"], int(row["messages"]), int(row["bytes"])) for row in rows}
    whole = 4 * 269_722
    assert sent.pop("hybrid") == ("backbone", "8", 1, 4 * 8 * 65)
    assert sent.pop("ring") == sent.pop("halving-doubling") == ("worker", "8", 2, whole)
    assert list(sent.values()) == [("server", "8", 2, 2 * whole)]


# The table of edits: an edit, and exactly which jobs it repeats.


def edited(file: str, old: str, new: str) -> Callable[[Path], list[str]]:
    """An edit of a file; with an empty ``old`` something is added at its end."""

    def edit(project: Path) -> list[str]:
        path = project / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1) if old else text + new)
        return []

    return edit


def asked(*settings: str) -> Callable[[Path], list[str]]:
    """Other values in the configuration."""
    return lambda project: list(settings)


def data_elsewhere(project: Path) -> list[str]:
    (project / "elsewhere").symlink_to(project / "data")
    return ["data={root: elsewhere, imagenet: ''}"]


def runs(*variants: str, kinds: str = "accuracy timing", ratio: str = "0.1") -> set[str]:
    """The messages of the runs of these variants of ResNet-20."""
    found = set()
    for variant in variants:
        name = variant if variant == "none" else f"{variant}-{ratio}"
        timing = f"resnet20-{name}-allgather-2workers-{LINKS}"
        every = {
            "accuracy": f"accuracy: resnet20-{name}-seed0",
            "timing": f"timing: {timing}",
            "exchanges": f"calibrate_exchanges: {timing}",
            "plan": f"plan for {timing}",
        }
        found |= {every[kind] for kind in kinds.split()}
    return found


ALL = ("none", "topk", "lags", "lags_adaptive", "dlgs")
PLANNED = ("lags_adaptive", "dlgs")
CURVES = {"figure05", "figure06"}
SHOWN = {
    "collecting the runs",
    "table 1",
    "table 2",
    "claims",
    "figure11",
} | CURVES  # both tidy tables are made at once
LAYERS = {"calibrate_layers: resnet20-2workers"}
FIELD = "    seed: int = 0\n"
# A dry run cannot know what a new plan or rate will say, so it lists the runs that would read it.
READ_PLANS = runs(*PLANNED, kinds="plan timing") | runs("lags_adaptive", kinds="accuracy") | SHOWN
READ_RATE = READ_PLANS | runs(*PLANNED, kinds="exchanges") | runs(*ALL, kinds="timing")
READ_RATE |= set() if testbed.available() else {"rate of the links for resnet20-2workers"}

EDITS = {
    "nothing": (asked(), set()),
    "comment in the loop": (edited("harness/training/train.py", "", "# said\n"), set()),
    "docstring of a calibration": (edited("harness/training/calibrate.py", '"""', '"""In other words: '), set()),
    "comment and docstring of a method": (edited("methods/lags.py", '"""LAGS', '# said\n"""This is LAGS'), set()),
    "statement in the loop": (
        edited("harness/training/train.py", "", "CHANGED = 1\n"),
        runs(*ALL, kinds="accuracy") | SHOWN,
    ),
    "statement in a method that another inherits from": (
        edited("methods/lags.py", "", "CHANGED = 1\n"),
        runs("lags", "lags_adaptive") | runs("lags_adaptive", kinds="exchanges plan") | SHOWN,
    ),
    "statement in a method": (
        edited("methods/dlgs.py", "", "CHANGED = 1\n"),
        runs("dlgs", kinds="accuracy timing exchanges plan") | SHOWN,
    ),
    "statement in calibrations": (
        edited("harness/training/calibrate.py", "", "CHANGED = 1\n"),
        LAYERS | READ_RATE,
    ),
    "statement in planners": (edited("harness/timemodel/planner.py", "", "CHANGED = 1\n"), READ_PLANS),
    "the nodes whose proportion is kept": (
        asked("testbed={nodes: {link_mbit: 10000}}"),
        set() if testbed.available() else READ_RATE,
    ),
    "statement in an engine's environment": (
        edited("harness/engines.py", "", "CHANGED = 1\n"),
        LAYERS | runs(*ALL) | READ_RATE,
    ),
    "field with a default in a spec": (edited("harness/spec.py", FIELD, FIELD + "    extra: int = 0\n"), set()),
    "hung_after_s": (asked("hung_after_s=77"), set()),
    "data.root": (data_elsewhere, set()),
    "lr": (
        asked("models={resnet20: {lr: 0.2}}"),
        runs(*ALL, kinds="accuracy") | SHOWN,
    ),
    "a new variant": (
        asked("variants={lean: {method: topk, ratio: 0.05}}"),
        runs("lean", ratio="0.05") | SHOWN,
    ),
    "comment in a table": (edited("workflow/scripts/table1.py", "", "# said\n"), set()),
    "statement in a table": (edited("workflow/scripts/table1.py", "", "CHANGED = 1\n"), {"table 1"}),
    "statement in the script of the curves": (edited("workflow/scripts/curve.py", "", "CHANGED = 1\n"), CURVES),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_repeats_exactly_what_it_changes(smoke, environment, edit):
    change, expected = EDITS[edit]
    assert planned(smoke, environment, *SMOKE, *change(smoke)) - {"all"} == expected


def test_a_plan_that_says_the_same_repeats_no_run(smoke, environment):
    """The dry run of "statement in planners", in earnest."""
    planner = smoke / "harness" / "timemodel" / "planner.py"
    folder = smoke / "results" / "smoke" / "runs" / "tested"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}
    # The studies' plans lie beside these, and are not asked for here.
    paths = [folder / f"plans/resnet20-{variant}-0.1-allgather-2workers-{LINKS}.json" for variant in PLANNED]
    plans = {path: (path.read_text(), path.stat().st_mtime_ns) for path in paths}
    planner.write_text(planner.read_text() + "CHANGED = 1\n")
    done = snakemake(smoke, environment, *SMOKE)
    assert done.returncode == 0, done.stderr[-3000:]
    for path, (said, since) in plans.items():
        assert path.read_text() == said and path.stat().st_mtime_ns > since
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")} == before
    assert planned(smoke, environment, *SMOKE) == set()


def test_a_plan_that_says_something_else_repeats_the_runs_that_read_it(smoke, environment):
    target = f"results/smoke/runs/tested/timing/resnet20-dlgs-0.1-allgather-2workers-{LINKS}/iterations.csv"
    for settings in (["plan_cost=dearest"], []):
        before = (smoke / target).stat().st_mtime_ns
        done = snakemake(smoke, environment, target, *SMOKE, *settings)
        assert done.returncode == 0, done.stderr[-3000:]
        assert (smoke / target).stat().st_mtime_ns > before


def example_method() -> str:
    """The method that CONTRIBUTING shows in full."""
    return re.search(r"```python\n(\"\"\"Round robin.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S).group(1)


def test_a_method_is_one_file(smoke, environment):
    """Found, tested, run, tabulated: with no other edit, and nothing else is run again."""
    source = example_method()
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    (smoke / "methods" / "roundrobin.py").write_text(source)
    assert planned(smoke, environment, *SMOKE) - {"all"} == runs("roundrobin") | SHOWN
    laws = ["tests/test_methods.py", "tests/test_sparsifiers.py"]
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *laws, "-k", "roundrobin"],
        cwd=smoke, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert tests.returncode == 0 and "passed" in tests.stdout, tests.stdout
    done = snakemake(smoke, environment, *SMOKE)
    assert done.returncode == 0, done.stderr[-3000:]
    for n in (1, 2):
        assert "roundrobin" in (smoke / "results" / "smoke" / f"table{n}.md").read_text()


TINY = '''"""A linear model."""

from torch import nn
from torch.nn import functional as F

TITLE = "Tiny"
DATA = "cifar10"
loss = F.cross_entropy


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
'''


def test_a_model_is_one_file(smoke, environment):
    """It has the tables and figures that the paper's models have, and repeats none of their runs."""
    (smoke / "models" / "tiny.py").write_text(TINY)
    settings = ["methods=[none, dlgs]", "models={tiny: {batch: 8, epochs: 1, train_epochs: 0.002, lr: 0.1}}"]
    listed = planned(smoke, environment, *SMOKE, *settings)
    assert not {message for message in listed if "resnet20" in message}
    done = snakemake(smoke, environment, *SMOKE, *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("figure05", "figure11", "accuracy-tiny", "loss-tiny", "breakdown-tiny"):
        assert (smoke / "figures" / "smoke" / f"{name}.svg").stat().st_size > 1000
    for table in ("table1", "table2"):
        assert "Tiny" in (smoke / "results" / "smoke" / f"{table}.md").read_text()


STUDY = {
    "example.smk": """STUDY_TARGETS.append(f"{RESULTS}/example_timing.csv")


use rule collect_timing as example_timing with:
    input:
        timing=tables("timing", "iterations.csv", studied("example")),
    output:
        f"{RESULTS}/example_timing.csv",
    log:
        f"{RESULTS}/logs/example.log",
""",
    "runs.py": """from harness.config import grid


def runs(values):
    ratios = {"ratios": values["studies"]["example"]["ratios"]}
    return grid.timing(values | {"methods": ["topk"], "timing": values["timing"] | ratios})
""",
    "schema.yaml": """description: an example
properties:
  ratios: {$ref: "#/$defs/ratios", default: [0.5]}
""",
}


def test_a_study_is_one_folder(smoke, environment):
    folder = smoke / "workflow" / "studies" / "example"
    folder.mkdir()
    for name, text in STUDY.items():
        (folder / name).write_text(text)
    assert "collecting the runs: example_timing" in planned(smoke, environment, "studies", *SMOKE)
    target = "results/smoke/example_timing.csv"
    done = snakemake(smoke, environment, target, *SMOKE, "studies={example: {ratios: [0.2]}}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert {(row["timed"], row["ratio"]) for row in rows_of(smoke / target)} == {("topk", "0.2"), ("none", "0.2")}
    refused = snakemake(smoke, environment, "-n", *SMOKE, "studies={example: {ratios: [2]}}")
    assert "studies.example.ratios.0: 2 is not valid; give a ratio" in refused.stdout + refused.stderr


def test_the_other_engine_runs_through_the_same_rules(smoke, environment):
    target = "results/smoke/runs/torch/accuracy/resnet20-lags-0.1-seed0/points.csv"
    done = snakemake(smoke, environment, target, *SMOKE, "engine=torch_dist", "name=torch")
    assert done.returncode == 0, done.stderr[-3000:]
    horovod = smoke / "results/smoke/runs/tested/accuracy/resnet20-lags-0.1-seed0/points.csv"
    columns = ("step", "train_loss", "test_loss", "test_accuracy")
    rows = [[[row[c] for c in columns] for row in rows_of(path)] for path in (smoke / target, horovod)]
    assert rows[0] == rows[1]  # two workers: the same bits on both engines


def test_without_ratios_nothing_is_timed_and_what_is_finished_shows(smoke, environment):
    where = "output={results: results/alone, figures: figures/alone, report: results/alone.html}"
    alone = [*SMOKE, "methods=[none, topk]", "timing={ratios: []}", where]
    none_yet = snakemake(smoke, environment, "so_far", *alone)
    assert none_yet.returncode and "no accuracy run is finished yet" in none_yet.stdout + none_yet.stderr
    first = "results/alone/runs/tested/accuracy/resnet20-none-seed0/points.csv"
    for targets in ([first], ["so_far"]):
        done = snakemake(smoke, environment, *targets, *alone)
        assert done.returncode == 0, done.stderr[-3000:]
    results = smoke / "results" / "alone"
    assert [row["variant"] for row in rows_of(results / "so_far.csv")] == ["none"]
    done = snakemake(smoke, environment, *alone)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["variant"] for row in rows_of(results / "table1.csv")] == ["none", "topk"]
    assert all("accuracy" in row["statement"].lower() for row in rows_of(results / "claims.csv"))
    assert (smoke / "results" / "alone.html").exists() and not (results / "table2.csv").exists()
    assert not (results / "runs" / "tested" / "timing").exists()


def test_a_server_is_a_process_more(smoke, environment):
    target = "results/smoke/runs/ps/timing/resnet20-dlgs-0.1-ps-weights-2workers-host"
    settings = ["topologies=[ps-weights]", "planner=layer", "methods=[none, dlgs]", "name=ps", "network=host"]
    done = snakemake(smoke, environment, f"{target}/iterations.csv", *SMOKE, *settings)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = rows_of(smoke / target / "iterations.csv")
    assert {row["variant"] for row in rows} == {"none", "dlgs"}
    assert {float(row["received_bytes"]) for row in rows} == {4 * 269_722}  # weights, whatever was pushed


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


def test_a_failed_run_shows_its_log_and_leaves_no_result(smoke, environment):
    (smoke / "methods" / "broken.py").write_text(BROKEN)
    target = "results/smoke/runs/tested/accuracy/resnet20-broken-seed0/points.csv"
    done = snakemake(smoke, environment, target, *SMOKE)
    assert done.returncode != 0
    assert "broken on purpose" in done.stdout + done.stderr
    assert not (smoke / target).exists()
    assert not list((smoke / "results").rglob("*.partial"))


def test_a_killed_workflow_leaves_no_processes_and_the_same_command_goes_on(smoke, environment):
    target = "results/smoke/runs/killed/accuracy/resnet20-none-seed0/points.csv"
    command = [target, *SMOKE, "name=killed", "checkpoint_every_s=0.1", "models={resnet20: {train_epochs: 0.2}}"]
    workflow = subprocess.Popen(
        ["snakemake", *command], cwd=smoke, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def workers() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            if "harness.training.run" in (process.info["cmdline"] or []) and process.info["cwd"] == str(smoke):
                found.append(process)
        return found

    try:
        assert until(lambda: (smoke / target).parent.with_suffix(".checkpoints").exists())
        second = snakemake(smoke, environment, *command)
        assert "cannot be locked" in second.stderr, second.stderr
        workflow.send_signal(signal.SIGKILL)
        assert until(lambda: not workers())
    finally:
        workflow.kill()
    done = snakemake(smoke, environment, *command)
    assert done.returncode == 0 and "goes on after step" in done.stderr, done.stderr
    assert not (smoke / target).parent.with_suffix(".checkpoints").exists()


def test_one_target_in_a_fresh_folder_ends_without_a_report(tmp_path, environment):
    project = copy_project(tmp_path / "project")
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


def test_imagenet_is_copied_before_it_is_read_and_damage_is_one_line(tmp_path, environment, imagenet):
    project, root = copy_project(tmp_path / "project"), tmp_path / "data"
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


def test_the_papers_configuration_lists_its_grid(environment):
    jobs = planned(ROOT, environment, "--nolock", "--configfile", "config/paper.yaml")
    kinds = [message.split(":")[0] for message in jobs]
    assert (kinds.count("accuracy"), kinds.count("timing")) == (45, 24)
