"""Results that were cut, edited, exchanged or interrupted: refused by name, and the same command mends them."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support import ENVIRONMENT, PATIENCE_S, TINY, clone, launch_tiny, rows_of, snakemake, until

from dlgs_bench import checksums
from dlgs_bench.launch.__main__ import main
from dlgs_bench.report import check_run
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training

engine, slow, unit, workflow = (getattr(pytest.mark, name) for name in ("engine", "slow", "unit", "workflow"))

TRAINING = Training("tiny", "vectors", batch=8, train_epochs=0.25, lr_steps=())
DLGS, CLUSTER = Scheme("dlgs", options={"ratio": 0.1, "refresh_every": 4}), Cluster("torch_dist")
CURVE = Measurement(evaluations=2, test_samples=20, final_test_samples=20)
SPECS = {
    "accuracy": RunSpec("accuracy", TRAINING, DLGS, CLUSTER, CURVE),
    "timing": RunSpec("timing", TRAINING, DLGS, CLUSTER, Measurement(launches=2, blocks=2, repeats=1)),
    "layers": RunSpec("layers", TRAINING, Scheme(), CLUSTER, Measurement(repeats=3)),
}


@pytest.fixture(scope="module")
def finished(tiny_source, tmp_path_factory) -> Path:
    """The folder in which runs of these specs are finished."""
    folder = tmp_path_factory.mktemp("finished")
    for kind, spec in SPECS.items():
        assert launch_tiny(tiny_source, spec, folder / kind) == 0
    return folder


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs"))


def with_true_sums(folder: Path) -> None:
    """Write the checksums of the changed tables into the run's record."""
    record = folder / "run.json"
    run = json.loads(record.read_text())
    run["files"] = {name: checksums.of(folder / name) for name in run["files"]}
    record.write_text(json.dumps(checksums.signed(run)))


@engine
@slow
@pytest.mark.parametrize("kind", SPECS)
def test_a_file_that_was_cut_or_edited_or_is_gone_is_named(kind, copied):
    folder, spec = copied / kind, SPECS[kind]
    assert not check_run.problem(folder) and not check_run.problem(folder, spec) and not check_run.problem(copied)
    names = [path.name for path in folder.glob("*.csv")]
    assert len(names) >= 2
    for name in names:
        path = folder / name
        whole = path.read_bytes()
        for damaged in (whole[:-10], whole.replace(b"1", b"2", 1), b""):
            path.write_bytes(damaged)
            assert check_run.problem(folder) == f"{path} is not what its run wrote"
        path.unlink()
        assert check_run.problem(folder, spec) == f"{path} is not what its run wrote"
        path.write_bytes(whole)
    record = folder / "run.json"
    for damaged in (
        record.read_text()[:-10],
        "",
        "[]",
        "{}",
        '{"spec": 1}',
        '{"spec": {"kind": "timing", "scheme": 1}}',
    ):
        record.write_text(damaged)
        assert check_run.problem(folder) == f"{record} is damaged"
    record.unlink()
    assert check_run.problem(folder, spec) == f"{record} is missing"


@engine
@slow
@pytest.mark.parametrize(
    "old, new", [('"disturbed"', '"disturbee"'), ('"files"', '"filet"'), ("0, ", "1, "), ('"crc32"', '"crc33"')]
)
def test_a_record_of_which_one_letter_changed_is_refused(old, new, copied):
    record = copied / "timing" / "run.json"
    text = json.dumps(json.loads(record.read_text()))
    record.write_text(text)
    assert old in text and not check_run.problem(record.parent)
    record.write_text(text.replace(old, new, 1))
    assert check_run.problem(record.parent).startswith(f"{record} is ")


@engine
@slow
@pytest.mark.parametrize("kind", ["accuracy", "timing"])
def test_rows_that_are_missing_are_noticed_without_a_checksum(kind, copied):
    path = copied / kind / "iterations.csv"
    whole = path.read_text().splitlines(keepends=True)
    for left in range(len(whole)):
        path.write_text("".join(whole[:left]))
        with_true_sums(path.parent)
        assert str(path.parent) in check_run.problem(path.parent, SPECS[kind])
    path.write_text("".join(whole))
    with_true_sums(path.parent)
    assert not check_run.problem(path.parent, SPECS[kind])
    points = copied / "accuracy" / "points.csv"
    points.write_text("".join(points.read_text().splitlines(keepends=True)[:-1]))
    with_true_sums(points.parent)
    assert check_run.problem(points.parent, SPECS["accuracy"]) == f"{points} has 1 rows, its run has 2 points"


OTHERS = {
    "lr 0.1, the configuration asks for 0.2": {"training": replace(TRAINING, lr=0.2)},
    "seed 0, the configuration asks for 1": {"training": replace(TRAINING, seed=1)},
    "method dlgs, the configuration asks for topk": {"scheme": replace(DLGS, method="topk")},
    "collective engine, the configuration asks for ring": {"scheme": replace(DLGS, collective="ring")},
    "workers 2, the configuration asks for 3": {"cluster": replace(CLUSTER, workers=3)},
    "rates_mbit (), the configuration asks for (5.0,)": {"cluster": replace(CLUSTER, rates_mbit=(5.0,))},
    "evaluations 2, the configuration asks for 3": {"measurement": replace(CURVE, evaluations=3)},
    "kind accuracy, the configuration asks for timing": {"kind": "timing"},
}


@engine
@slow
@pytest.mark.parametrize("said", OTHERS)
def test_a_run_of_another_spec_is_named_with_what_differs(said, finished):
    asked = replace(SPECS["accuracy"], **OTHERS[said])
    assert (
        check_run.problem(finished / "accuracy", asked) == f"{finished / 'accuracy' / 'run.json'}: the run had {said}"
    )


@engine
@slow
def test_what_a_plan_and_a_calibration_say_is_no_part_of_what_was_asked_for(copied):
    folder, asked = copied / "timing", SPECS["timing"]
    record = folder / "run.json"
    run = json.loads(record.read_text())
    run["spec"]["scheme"]["groups"] = [[0, 4]]
    run["spec"]["cluster"] |= {"rates_mbit": [7.0, 7.0], "calibrated_s": 0.1, "in_proportion": True}
    record.write_text(json.dumps(checksums.signed(run)))
    assert check_run.problem(folder, asked).endswith("had in_proportion True, the configuration asks for False")
    assert not check_run.problem(folder, replace(asked, cluster=replace(CLUSTER, in_proportion=True)))


@unit
@pytest.mark.parametrize("file", ["--plan", "--rate"])
@pytest.mark.parametrize("content", ["", '{"model": "resn', "\0", "[1]", '{"mode1": "resnet20"}'])
def test_a_plan_or_a_rate_that_was_cut_stops_the_launch_in_one_line(file, content, tmp_path):
    path = tmp_path / "found.json"
    path.write_text(content)
    arguments = [SPECS["timing"].to_json(), LaunchSettings().to_json(), tmp_path / "run", tmp_path / "log", file, path]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    line = ended.value.code
    assert line.startswith(f"error: {path}: ") and "delete the file" in line and "\n" not in line


# A whole workflow of the tiny model.
RUNS = "results/tiny/runs/tested/accuracy"


@pytest.fixture
def project(tiny_made, tmp_path) -> Path:
    """A copy of the project in which the tiny configuration has run, for one test."""
    return clone(tiny_made, tmp_path / "project")


def refused(project: Path) -> str:
    """The one line with which the workflow refuses to go on."""
    done = snakemake(project, ENVIRONMENT, *TINY)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in said, said
    return next(line for line in said.splitlines() if line.startswith("error: "))


def accuracies(project: Path) -> list[tuple]:
    rows = rows_of(project / "results" / "tiny" / "table1.csv")
    return [(row["variant"], row["train_loss"], row["test_loss"]) for row in rows]


@workflow
@slow
def test_a_workflow_refuses_damaged_results_and_mends_what_is_deleted(project):
    before, none, topk = accuracies(project), *(project / RUNS / f"tiny-{n}-seed0" for n in ("none", "topk-0.1"))

    # A tidy table whose last row is missing.
    tidy = project / "results" / "tiny" / "accuracy.csv"
    tidy.write_text("".join(tidy.read_text().splitlines(keepends=True)[:-1]))
    assert "results/tiny/accuracy.csv: the content does not match its checksum; delete it" in refused(project)

    # The run of another spec in a run's folder.
    shutil.rmtree(topk)
    shutil.copytree(none, topk, copy_function=shutil.copy)  # as cp -r does: the files are new
    said = refused(project)
    assert f"{topk.relative_to(project)}/run.json: the run had method none, the configuration asks for topk" in said
    assert f"; delete {topk.relative_to(project)}, and the same command makes it again" in said

    # A run whose table was cut, which is found before the other one.
    points = none / "points.csv"
    points.write_text(points.read_text()[:-5])
    assert f"{RUNS}/{none.name}/points.csv is not what its run wrote; delete" in refused(project)

    shutil.rmtree(none)
    shutil.rmtree(topk)
    tidy.unlink(missing_ok=True)  # Snakemake removes what a failed script should have written
    done = snakemake(project, ENVIRONMENT, *TINY)
    assert done.returncode == 0 and accuracies(project) == before, done.stderr


def processes_in(folder: Path) -> list[psutil.Process]:
    every = psutil.process_iter(["cwd", "cmdline"])  # ``info`` holds them also after a process has ended
    return [one for one in every if str(one.info["cwd"] or "").startswith(str(folder))]


def script_runs(folder: Path) -> bool:
    """Whether the Python process of a table's script is there, which first imports for a second."""
    commands = (one.info["cmdline"] or [] for one in processes_in(folder))
    return any("/.snakemake/scripts/" in argument for command in commands for argument in command)


STAGES: dict[str, Callable[[Path], bool]] = {
    "ranks train": lambda folder: bool(list(folder.glob(f"{RUNS}/*.partial/*/rank0.json"))),
    "a script runs": script_runs,
}


@workflow
@slow
def test_after_ctrl_c_no_process_is_left_and_the_same_command_goes_on(project, fault):
    before = accuracies(project)
    shutil.rmtree(project / RUNS / "tiny-none-seed0")
    for table in (project / "results" / "tiny").glob("*.csv"):  # otherwise nothing asks for the run
        table.unlink()
    for stage, reached in STAGES.items():
        # Ranks train for at least 12 s on every machine, and the run goes on quickly in the next stage.
        pause = {"VECTORS_PAUSE_S": "1"} if stage == "ranks train" else {}
        workflow = subprocess.Popen(
            ["snakemake", *TINY], cwd=project, env=ENVIRONMENT | pause, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            assert until(lambda reached=reached, workflow=workflow: reached(project) or workflow.poll() is not None)
            assert reached(project), stage
            os.killpg(workflow.pid, signal.SIGINT)  # as a terminal does
            pressed = time.monotonic()
            said, _ = workflow.communicate(timeout=PATIENCE_S)
            fault(f"Ctrl-C while {stage}", pressed)
        finally:
            workflow.kill()
        assert workflow.returncode != 0
        assert until(lambda: not processes_in(project)) and not list(project.rglob("*.partial")), stage
        assert ("goes on after step" in said) == (stage == "a script runs"), said
    done = snakemake(project, ENVIRONMENT, *TINY)
    assert done.returncode == 0 and accuracies(project) == before, done.stderr
