"""A plan reaches the run that it was made for, and no other."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlgs_bench import checksums
from dlgs_bench.launch import __main__ as command_line
from dlgs_bench.spec import LaunchSettings, RunSpec, Scheme, Training
from dlgs_bench.timemodel import plans

pytestmark = pytest.mark.unit

PLAN = {"model": "vgg16", "variant": "dlgs", "ratio": 0.1, "engine": "horovod", "topology": "allgather"}
PLAN |= {
    "bucketing": "",
    "collective": "engine",
    "workers": 2,
    "planner": "paper",
    "groups": [[0, 3], [3, 54]],
    "ratios": [0.1, 0.2],
}
PLAN |= {"comparison": {"all": {"plan": [[0, 54]]}, "paper": {"plan": [[0, 3], [3, 54]]}}}
SPEC = RunSpec("timing", Training(model="vgg16"), Scheme("dlgs", options={"ratio": 0.1}, planner="paper"))


@pytest.fixture
def calibration(tmp_path) -> Path:
    path = tmp_path / "samples.csv"
    path.write_text("entries\n1\n")
    return path


def plan_file(calibration: Path, **changes) -> Path:
    path = calibration.with_name("plan.json")
    known = {str(calibration): hashlib.sha256(calibration.read_bytes()).hexdigest()}
    path.write_text(json.dumps(PLAN | {"calibration": known} | changes))
    return path


def test_a_plan_reaches_the_run_it_was_made_for(calibration):
    found = plans.read(plan_file(calibration), SPEC)
    assert (found.scheme.groups, found.scheme.ratios) == (((0, 3), (3, 54)), (0.1, 0.2))
    assert (found.training, found.scheme.options) == (SPEC.training, SPEC.scheme.options)
    assert RunSpec.from_json(found.to_json()) == found


def test_a_run_of_all_planners_gets_all_plans(calibration):
    found = plans.read(plan_file(calibration), RunSpec("planners", SPEC.training, SPEC.scheme))
    assert found.scheme.plans == {"all": ((0, 54),), "paper": ((0, 3), (3, 54))}
    assert RunSpec.from_json(found.to_json()) == found


def test_uncompressed_timed_with_all_planners_gets_the_groups_of_its_own_plan(calibration):
    timed_with = {"none-planned": {"method": "none", "variant": "none", "options": {}, "bucketing": "planned"}}
    spec = RunSpec("planners", SPEC.training, replace(SPEC.scheme, timed_with=timed_with))
    own = plans.read(plan_file(calibration), spec)
    found = plans.read(plan_file(calibration, variant="none", ratio=None, bucketing="planned"), own)
    assert found.scheme.plans == own.scheme.plans and not found.scheme.groups
    assert found.members["none-planned"].scheme.groups == ((0, 3), (3, 54))
    assert found.asked() == spec


def test_an_accuracy_run_takes_the_ratios_that_were_planned_for_another_engine(calibration):
    found = plans.read(plan_file(calibration, engine="torch_dist"), RunSpec("accuracy", SPEC.training, SPEC.scheme))
    assert found.scheme.ratios == (0.1, 0.2)


@pytest.mark.parametrize(
    "key, value",
    [
        ("engine", "torch_dist"),
        ("model", "resnet20"),
        ("workers", 3),
        ("ratio", 0.01),
        ("planner", "all"),
        ("variant", "x"),
        ("collective", "ring"),
    ],
)
def test_a_plan_for_another_run_is_refused_with_the_reason(calibration, key, value):
    reason = f"plan.json: the plan is for {key} {value}, this run has {key} {PLAN[key]}"
    with pytest.raises(ValueError, match=reason):
        plans.read(plan_file(calibration, **{key: value}), SPEC)


def test_a_plan_from_another_calibration_stops_the_launch_in_one_line(calibration):
    path, folder = plan_file(calibration), str(calibration.parent / "run")
    calibration.write_text("entries\n2\n")
    with pytest.raises(SystemExit) as refused:
        command_line.main([SPEC.to_json(), LaunchSettings().to_json(), folder, "log", "--plan", str(path), "--rate"])
    said = f"error: {path}: the plan is from another calibration than {calibration}; delete the file and let"
    assert refused.value.code.startswith(said) and "\n" not in refused.value.code


def test_a_plan_in_which_a_figure_was_changed_is_refused(calibration):
    path = plan_file(calibration)
    checksums.write_for([path])
    assert plans.read(path, SPEC)
    path.write_text(path.read_text().replace("0.1", "0.7"))
    with pytest.raises(ValueError, match=r"plan\.json: the content does not match its checksum"):
        plans.read(path, SPEC)
