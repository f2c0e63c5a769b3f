"""The workflow end to end, on real Horovod processes, in a copy of the project."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, SMOKE, copy_project, rows_of, snakemake

from harness.launch import testbed

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

KINDS = ("accuracy", "timing")
TABLES = ("table1", "table2", "claims")
LINKS = "host" if testbed.available() else "proportional"


@pytest.fixture(scope="module")
def made(tmp_path_factory, environment) -> Path:
    """A copy of the project, with the paper's methods alone, in which the smoke configuration has run."""
    project = copy_project(tmp_path_factory.mktemp("project"), ALL)
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


def test_plans_reach_the_runs(smoke):
    folder = smoke / "results/smoke/runs/tested"
    plan = json.loads(next(folder.glob("plans/resnet20-dlgs-0.1-allgather-2workers-*.json")).read_text())
    timing = next(folder.glob("timing/resnet20-dlgs-0.1-allgather-*"))
    assert json.loads((timing / "run.json").read_text())["spec"]["scheme"]["groups"] == plan["groups"]
    learnt = json.loads((folder / "accuracy/resnet20-dlgs-0.1-seed0/run.json").read_text())["spec"]["scheme"]
    assert learnt["planner"] == "size" and "groups" not in learnt  # the same on every machine
    best = min(c["iteration_s"] for c in plan["comparison"].values())
    assert plan["comparison"]["exact"]["iteration_s"] == best


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


def test_the_papers_configuration_lists_its_grid(environment):
    jobs = planned(ROOT, environment, "--nolock", "--configfile", "config/paper.yaml")
    kinds = [message.split(":")[0] for message in jobs]
    assert (kinds.count("accuracy"), kinds.count("timing")) == (45, 24)
