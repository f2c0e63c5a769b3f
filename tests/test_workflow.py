"""The workflow from a configuration to its report, on real processes, with a tiny model in a copy of the project."""

import json
import re
import shutil
from pathlib import Path

import pytest
from support import (
    ENVIRONMENT,
    ROOT,
    TINY,
    clone,
    documented_method,
    needs_horovod,
    python_in,
    read,
    rows_of,
    snakemake,
)

from dlgs_bench.config import load as config
from dlgs_bench.config import studies
from dlgs_bench.paper import claims
from dlgs_bench.testbed import testbed
from dlgs_bench.timemodel.planner import TOLERANCE

PARAMETERS = 334
# The messages of the jobs that redraw all tables and figures. Both tidy tables are made at once.
SHOWN = {"collect", "table1", "table2", "answer", "baselines", "claims"}
SHOWN |= {"accuracy-tiny", "loss-tiny", "breakdown-tiny"}
RUNS = "results/tiny/runs/tested"
NAMES = {"accuracy/tiny-none-seed0", "accuracy/tiny-topk-0.1-seed0", "timing/tiny-topk-0.1-allgather-2workers-host"}
workflow, slow = pytest.mark.workflow, pytest.mark.slow


def planned(project: Path, *arguments: str) -> set[str]:
    """The messages of the jobs that a dry run lists."""
    done = snakemake(project, ENVIRONMENT, *arguments, "-n", "--quiet", "progress")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^Job \d+: (.*)$", done.stdout + done.stderr, re.M)) - {"all"}


def run(project: Path, *arguments: str) -> str:
    """What a workflow prints that must succeed."""
    done = snakemake(project, ENVIRONMENT, *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def names_of(project: Path, **changes) -> list[str]:
    """The names of a project's runs with ``changes`` to the tiny configuration."""
    program = (
        "import json, sys, yaml\nfrom dlgs_bench.config import load\n"
        "values = yaml.safe_load(open('config/tiny.yaml')) | json.loads(sys.argv[1])\n"
        "print(json.dumps(list(load.load(values, 'tiny').runs)))"
    )
    return json.loads(python_in(project, "-c", program, json.dumps(changes)))


@pytest.fixture
def made(tiny_made, tmp_path) -> Path:
    """A copy of the project in which the tiny configuration has run, for one test."""
    return clone(tiny_made, tmp_path / "project")


@workflow
def test_one_command_leads_from_a_configuration_to_its_report(tiny_made):
    """The model and the data set are one file each. The report has every table and figure of the paper."""
    said = (tiny_made / "said.txt").read_text()
    assert "runs done" in said
    assert re.search(r"time of the runs by kind: accuracy \d+:\d\d min, timing \d+:\d\d min", said)
    records = {str(path.parent.relative_to(tiny_made / RUNS)) for path in (tiny_made / RUNS).rglob("run.json")}
    assert records == NAMES
    results, figures = tiny_made / "results" / "tiny", tiny_made / "figures" / "tiny"
    accuracy, timing = rows_of(results / "table1.csv"), rows_of(results / "table2.csv")
    assert [row["variant"] for row in accuracy] == ["none", "topk"]
    assert {row["variant"] for row in timing} == {"none", "topk"}
    for table in ("table1", "table2"):
        assert "Tiny" in (results / f"{table}.md").read_text() and "Top-K" in (results / f"{table}.tex").read_text()
    sent = {row["variant"]: float(row["sent_bytes"]) for row in rows_of(results / "timing.csv")}
    assert sent == {"none": 4 * PARAMETERS, "topk": 8 * 33 + 8}  # all entries; indices and values, and a length
    assert rows_of(results / "claims.csv")
    for name in ("accuracy-tiny", "loss-tiny", "breakdown-tiny"):
        assert "<svg" in (figures / f"{name}.svg").read_text()
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    provenance = json.loads((results / "provenance.json").read_text())
    assert provenance["runs"] == len(NAMES) and provenance["network"] == ["loopback"]
    page = (results / "report.html").read_text()
    assert "Table 1" in page and "Table 2" in page and page.count("<img") == 3
    assert not list(tiny_made.rglob("*.partial"))


@workflow
@slow
def test_a_new_method_runs_only_its_own_runs(made):
    """This is a dry run. test_edits.py expects the same of a new variant."""
    (made / "methods" / "roundrobin.py").write_text(documented_method("roundrobin"))
    listed = planned(made, *TINY, "methods=[none, topk, roundrobin]")
    assert listed > SHOWN
    names = {message.replace(": ", "/") for message in listed - SHOWN}
    assert {name.split("/")[0] for name in names} == {"accuracy", "timing"}
    assert not [name for name in names if (made / RUNS / name).exists()]


@workflow
@slow
def test_a_method_is_one_file(made):
    """The method runs and is in the tables without another edit. test_newcomer.py holds the same method to the laws."""
    source = documented_method("roundrobin")
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    (made / "methods" / "roundrobin.py").write_text(source)
    assert "Nothing to be done" in run(made, *TINY)
    for ending in ("csv", "html"):  # of a study whose runs this configuration has not made
        shutil.copy(made / "results" / "tiny" / f"table2.{ending}", made / "results" / "tiny" / f"methods.{ending}")
    run(made, *TINY, "methods=[none, topk, roundrobin]")
    page = (made / "results" / "tiny" / "report.html").read_text()
    assert 'id="table2"' in page and 'id="methods"' not in page
    for n in (1, 2):
        assert "roundrobin" in (made / "results" / "tiny" / f"table{n}.md").read_text()


# Plans: the same project with DLGS, whose layers are merged by a planner, as those of uncompressed are.
DLGS = {"methods": ["none", "topk", "dlgs"], "planner": "paper"}
PLANNED = [*TINY, "methods=[none, topk, dlgs]", "planner=paper"]


@pytest.fixture(scope="module")
def with_plan(tiny_made, tmp_path_factory) -> Path:
    project = clone(tiny_made, tmp_path_factory.mktemp("planned") / "project")
    shutil.rmtree(project / RUNS / "timing")
    run(project, *PLANNED)
    return project


@workflow
@slow
def test_a_plan_reaches_its_runs_and_repeats_them_only_when_it_says_something_else(with_plan, tmp_path):
    project = clone(with_plan, tmp_path / "project")
    folder = project / RUNS
    (path,) = (folder / "plans").glob("*dlgs*.json")
    plan = json.loads(path.read_text())
    times = {name: row["iteration_s"] for name, row in plan["comparison"].items()}
    assert times["exact"] <= min(times.values()) * (1 + TOLERANCE)
    records = list(folder.glob("timing/*/run.json"))
    assert records and all(json.dumps(plan["groups"]) in json.dumps(json.loads(f.read_text())["spec"]) for f in records)
    learnt = json.loads((folder / "accuracy/tiny-dlgs-0.1-seed0/run.json").read_text())["spec"]["scheme"]
    assert learnt["planner"] == "size" and "groups" not in learnt  # the same on every machine

    # Other code, the same plan. A dry run cannot know what a plan will say, so it lists the runs that would read it.
    timed = {name.replace("/", ": ") for name in names_of(project, **DLGS) if name.startswith("timing/")}
    planner = project / "dlgs_bench" / "timemodel" / "planner.py"
    planner.write_text(planner.read_text() + "CHANGED = 1\n")
    plans = {f"plan for {file.stem}" for file in (folder / "plans").glob("*.json")}
    listed = planned(project, *PLANNED)  # of several checkpoints, Snakemake lists the first
    assert len(plans) == 2 and listed & plans and listed - plans == timed | SHOWN
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("run.json")}
    said, since = path.read_text(), path.stat().st_mtime_ns
    run(project, *PLANNED)
    assert path.read_text() == said and path.stat().st_mtime_ns > since
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("run.json")} == before

    # Another plan.
    run(project, *PLANNED, "plan_cost=worst")
    assert path.read_text() != said
    changed = {file for file in folder.rglob("run.json") if file.stat().st_mtime_ns != before[file]}
    assert changed == set(records)


@workflow
@slow
@pytest.mark.parametrize(
    "file, text, kinds",
    [
        ("methods/dlgs.py", "# said\n", ""),
        ("methods/dlgs.py", "CHANGED = 1\n", "accuracy timing calibrate_exchanges plan shown"),
        ("workflow/scripts/table1.py", "CHANGED = 1\n", "table"),
    ],
    ids=["comment in a method", "statement in a method", "statement in a table"],
)
def test_an_edit_repeats_exactly_what_it_changes(file, text, kinds, with_plan, tmp_path):
    """These are dry runs; test_edits.py has more edits."""
    project = clone(with_plan, tmp_path / "project")
    timed = [Path(name).name for name in names_of(project, **DLGS) if name.startswith("timing/")]
    with (project / file).open("a") as source:
        source.write(text)
    plans = {f"plan for {path.stem}" for path in (project / RUNS / "plans").glob("*.json")}
    messages = {
        "accuracy": {"accuracy: tiny-dlgs-0.1-seed0"},
        "timing": {f"timing: {name}" for name in timed},
        "calibrate_exchanges": {f"calibrate_exchanges: {name}" for name in timed},
        "plan": set(),
        "shown": SHOWN,
        "table": {"table1"},
    }
    listed = planned(project, *PLANNED)  # of several checkpoints, Snakemake lists the first
    assert listed - plans == set().union(*(messages[kind] for kind in kinds.split()))
    assert bool(listed & plans) == ("plan" in kinds.split())


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
    "runs.py": """from dlgs_bench.config import grid


def runs(values):
    ratios = {"ratios": values["studies"]["example"]["ratios"], "together": []}
    return grid.timing(values | {"methods": ["topk"], "timing": values["timing"] | ratios})
""",
    "schema.yaml": """description: an example
properties:
  ratios: {$ref: "#/$defs/ratios", default: [0.5]}
""",
}


@workflow
@slow
def test_every_study_is_a_target_of_its_own_name(tiny_source):
    listed = run(tiny_source, "--nolock", "--list-target-rules", *TINY)
    assert set(studies.names()) <= set(listed.split())


@workflow
@slow
def test_a_study_is_one_folder(made):
    folder = made / "workflow" / "studies" / "example"
    folder.mkdir()
    for name, text in STUDY.items():
        (folder / name).write_text(text)
    assert all("example_timing" in planned(made, target, *TINY) for target in ("studies", "example"))
    target = "results/tiny/example_timing.csv"
    run(made, target, *TINY, "studies={example: {ratios: [0.2]}}")
    rows = rows_of(made / target)
    assert {row["timed"] for row in rows} == {"topk", "none"}
    assert {row["ratio"] for row in rows if row["timed"] == "topk"} == {"0.2"}
    refused = snakemake(made, ENVIRONMENT, "-n", *TINY, "studies={example: {ratios: [2]}}")
    assert "studies.example.ratios.0: 2 is not valid; give a ratio" in refused.stdout + refused.stderr


@workflow
@slow
@needs_horovod
def test_the_other_engine_runs_through_the_same_rules(made):
    name = "accuracy/tiny-topk-0.1-seed0/points.csv"
    run(made, f"results/tiny/runs/horovod/{name}", *TINY, "engine=horovod", "name=horovod")
    columns = ("step", "train_loss", "test_loss", "test_accuracy")
    paths = (made / RUNS / name, made / "results/tiny/runs/horovod" / name)
    rows = [[[row[c] for c in columns] for row in rows_of(path)] for path in paths]
    assert rows[0] == rows[1]  # two workers: the same bits on both engines


@workflow
@slow
def test_without_ratios_nothing_is_timed_and_what_is_finished_shows(made):
    results, topk = made / "results" / "tiny", made / RUNS / "accuracy" / "tiny-topk-0.1-seed0"
    kept = topk.rename(made / "kept")
    run(made, "so_far", *TINY)
    assert [row["variant"] for row in rows_of(results / "so_far.csv")] == ["none"]
    refused = snakemake(made, ENVIRONMENT, "so_far", *TINY, "models={tiny: {lr: 0.2}}")
    assert "run.json: the run had lr 0.1, the configuration asks for 0.2" in refused.stdout + refused.stderr
    none = clone(made / RUNS / "accuracy", made / "runs")
    shutil.rmtree(made / RUNS)
    nothing = snakemake(made, ENVIRONMENT, "so_far", *TINY)
    assert nothing.returncode and "no accuracy run is finished yet" in nothing.stdout + nothing.stderr
    none.rename(made / RUNS / "accuracy")
    kept.rename(topk)
    for table in results.glob("*.csv"):
        table.unlink()
    run(made, *TINY, "timing={ratios: []}")
    assert [row["variant"] for row in rows_of(results / "table1.csv")] == ["none", "topk"]
    assert {row["statement"] for row in rows_of(results / "claims.csv")} <= set(claims.LEARNT)
    assert (results / "report.html").exists() and not (results / "table2.csv").exists()
    assert not (made / RUNS / "timing").exists()
    studied = planned(made, "studies", *TINY, "timing={ratios: []}")
    assert not studied & {"prediction_table", "slowdown_table", "figure of the calibration of tiny", "map_figure"}


@workflow
@slow
def test_a_server_is_a_process_more(made):
    changes = {"topologies": ["ps-weights"], "planner": "layer", "methods": ["none", "topk"]}
    timed = [name for name in names_of(made, **changes) if name.startswith("timing/")][-1]
    table = f"results/tiny/runs/tested/{timed}/iterations.csv"
    run(made, table, *TINY, *(f"{key}={json.dumps(value)}" for key, value in changes.items()))
    rows = rows_of(made / table)
    assert {row["variant"] for row in rows} == {"none", "topk-0.1"}
    assert {float(row["received_bytes"]) for row in rows} == {4 * PARAMETERS}  # weights, whatever was pushed


@pytest.mark.root
@slow
@pytest.mark.skipif(bool(testbed.why_unavailable()), reason=f"no testbed here: {testbed.why_unavailable()}")
def test_timed_runs_use_the_testbed_and_say_so(made):
    """The link rate follows from the calibration, for nodes that are about as fast as a worker."""
    links = "testbed={nodes: {link_mbit: 200, multiply_adds_s: 1.0e+6}}"
    run(made, "results/tiny/table2.md", *TINY, "network=testbed", links)
    results = made / "results" / "tiny"
    networks = {kind: {row["network"] for row in rows_of(results / f"{kind}.csv")} for kind in ("accuracy", "timing")}
    assert networks == {"accuracy": {"loopback"}, "timing": {"testbed"}}
    (rate,) = (json.loads(path.read_text())["rate_mbit"] for path in (made / RUNS / "calibration/rates").glob("*.json"))
    assert f"testbed network, {rate:g} Mb/s links (measured " in (results / "table2.md").read_text()
    assert {float(row["rate_mbit"]) for row in rows_of(results / "timing.csv")} == {rate}


@workflow
@slow
def test_a_dry_run_of_the_papers_configuration_lists_the_runs_of_its_grid_and_its_studies():
    loaded = config.load(read("paper"), "config/paper.yaml")
    assert len([name for name in loaded.runs if name.startswith("accuracy/")]) == 45
    listed = planned(ROOT, "all", "studies", "--nolock", "--configfile", "config/paper.yaml")
    assert {message.replace(": ", "/") for message in listed} >= loaded.runs.keys()
    trained = {message.replace(": ", "/") for message in listed if message.startswith("accuracy:")}
    assert trained <= loaded.every.keys()
