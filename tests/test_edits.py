"""Which runs and scripts an edit of the code or of the configuration repeats."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support import ROOT, read

from dlgs_bench import fingerprint
from dlgs_bench.config import load as config
from dlgs_bench.spec import RunSpec

pytestmark = pytest.mark.unit

VALUES = read("smoke") | {"network": "host", "methods": ["none", "topk", "lags", "lags_adaptive", "dlgs"]}
SCRIPTS = ("rate", "plan", "collect", "table1", "table2", "claims", "curve", "breakdown")
FIELD = "    seed: int = 0\n"


def runs(**changes) -> dict[str, RunSpec]:
    """The runs and calibrations of the paper's tables."""
    loaded = config.load(VALUES | changes, "c")
    return loaded.runs | loaded.calibrations


def methods_of(spec: RunSpec) -> set[str]:
    """The methods that a run executes."""
    return {member.scheme.method for member in spec.members.values()}


@dataclass
class Edit:
    """``old`` -> ``new`` in a file. Without ``old``, ``new`` is added at the end. ``repeats``: tells whether a run with
    a given spec is repeated; ``scripts``: the scripts that run again."""

    file: str
    old: str
    new: str
    repeats: Callable[[RunSpec], bool] = lambda spec: False
    scripts: tuple[str, ...] = ()


def kind(*kinds: str) -> Callable[[RunSpec], bool]:
    return lambda spec: spec.kind in kinds


def method(*names: str) -> Callable[[RunSpec], bool]:
    return lambda spec: bool(methods_of(spec) & {*names})


CHANGED = "CHANGED = 1\n"
EDITS = {
    "comment in the loop": Edit("dlgs_bench/training/train.py", "", "# said\n"),
    "docstring of a calibration": Edit("dlgs_bench/training/calibrate.py", '"""', '"""In other words: '),
    "comment and docstring of a method": Edit("methods/lags.py", '"""LAGS', '# said\n"""This is LAGS'),
    "comment in a table": Edit("workflow/scripts/table1.py", "", "# said\n"),
    "field with a default in a spec": Edit("dlgs_bench/spec.py", FIELD, FIELD + "    extra: int = 0\n"),
    "statement in the loop": Edit("dlgs_bench/training/train.py", "", CHANGED, kind("accuracy")),
    "statement in a method": Edit("methods/dlgs.py", "", CHANGED, method("dlgs")),
    "statement in a method that another inherits from": Edit(
        "methods/lags.py", "", CHANGED, method("lags", "lags_adaptive")
    ),
    "statement in uncompressed, which every timing run times": Edit("methods/none.py", "", CHANGED, method("none")),
    "statement in calibrations": Edit("dlgs_bench/training/calibrate.py", "", CHANGED, kind("layers", "exchanges")),
    "statement in timing runs": Edit(  # calibrations time in the same way
        "dlgs_bench/training/timed.py", "", CHANGED, kind("timing", "layers", "exchanges")
    ),
    "statement in a model": Edit("models/resnet20.py", "", CHANGED, lambda spec: True),
    "statement in another model": Edit("models/vgg16.py", "", CHANGED),
    "statement in an engine's environment": Edit("dlgs_bench/engines.py", "", CHANGED, lambda spec: True),
    "statement in the other engine": Edit("dlgs_bench/comm/torch_dist_engine.py", "", CHANGED),
    "statement in the launcher": Edit("dlgs_bench/launch/launcher.py", "", CHANGED),
    "statement in planners": Edit("dlgs_bench/timemodel/planner.py", "", CHANGED, scripts=("plan",)),
    "statement in a table": Edit("workflow/scripts/table1.py", "", CHANGED, scripts=("table1",)),
    "statement in the script of the curves": Edit("workflow/scripts/curve.py", "", CHANGED, scripts=("curve",)),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_the_code_repeats_exactly_what_it_changes(name, tmp_path, monkeypatch):
    edit, file = EDITS[name], ROOT / EDITS[name].file
    text = file.read_text()
    assert edit.old in text
    edited = tmp_path / file.name
    edited.write_text(text.replace(edit.old, edit.new, 1) if edit.old else text + edit.new)
    before = fingerprint.digest(file)
    if file == fingerprint.SPEC:
        monkeypatch.setattr(fingerprint, "SPEC", edited)
    changed = fingerprint.digest.__wrapped__(edited) != before

    def repeated(fingerprints: list[str]) -> bool:
        return changed and f"{edit.file} {before}" in fingerprints

    every = runs()
    assert {
        name for name, spec in every.items() if repeated(fingerprint.fingerprints(fingerprint.behind_run(spec)))
    } == {name for name, spec in every.items() if edit.repeats(spec)}
    scripts = {
        one: fingerprint.fingerprints(fingerprint.behind_script(f"workflow/scripts/{one}.py")) for one in SCRIPTS
    }
    assert {one for one in SCRIPTS if repeated(scripts[one])} == {*edit.scripts}


SETTINGS = {
    "hang_timeout_s": ({"hang_timeout_s": 77}, lambda spec: False),
    "data.root": ({"data": {"root": "elsewhere", "imagenet": ""}}, lambda spec: False),
    "lr": ({"models": {"resnet20": VALUES["models"]["resnet20"] | {"lr": 0.2}}}, kind("accuracy")),
    "blocks": ({"timing": VALUES["timing"] | {"blocks": 3}}, kind("timing")),
    "engine": ({"engine": "torch_dist"}, lambda spec: True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_exactly_the_runs_whose_numbers_it_decides(name):
    changes, expected = SETTINGS[name]
    before, after = runs(), runs(**changes)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name].to_json() != after[name].to_json()} == {
        name for name, spec in before.items() if expected(spec)
    }


def test_a_new_variant_leaves_the_runs_that_are_there_alone():
    before, after = (
        runs(),
        runs(variants={"lean": {"method": "topk", "ratio": 0.05}}, methods=[*VALUES["methods"], "lean"]),
    )
    assert {name: after[name].to_json() for name in before} == {name: spec.to_json() for name, spec in before.items()}
    added = [after[name] for name in after.keys() - before.keys()]
    assert {spec.kind for spec in added} >= {"accuracy", "timing"}
    for spec in added:
        variants = {member.variant for member in spec.members.values()}
        assert "lean" in variants and variants <= {"none", "lean"}
