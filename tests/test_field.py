"""Published measurements against our time model: the table repeats, and its verdicts follow from its numbers."""

import csv
import math
import sys

import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import field

pytestmark = pytest.mark.unit
FOLDER = ROOT / "results" / "reference-field"


@pytest.fixture(scope="module")
def cases() -> dict[str, dict]:
    return field.load(FOLDER)


@pytest.fixture(scope="module")
def kept() -> list[dict]:
    """The rows of the kept table, as text."""
    with (FOLDER / "field.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_kept_tables_are_what_the_command_writes(cases, tmp_path, monkeypatch):
    monkeypatch.setattr(field, "draw", lambda rows, path: None)
    (tmp_path / "cases.csv").write_bytes((FOLDER / "cases.csv").read_bytes())
    field.main(tmp_path)
    for name in ("field.csv", "field.md"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text()
    last = (FOLDER / "field.md").read_text().splitlines()[-1]
    assert last in (FOLDER / "README.md").read_text()


def test_every_case_has_a_source_and_says_what_it_lacks(cases, kept):
    assert [row["case"] for row in kept] == list(cases)
    for case, row in zip(cases.values(), kept, strict=True):
        assert case["source"] and case["address"].startswith("https://")
        assert bool(case["missing"]) == (row["verdict"] == "cannot be told")


def test_no_verdict_contradicts_its_numbers(cases, kept):
    for row in kept:
        published, predicted = (float(row[key] or "nan") for key in ("published", "predicted"))
        off = max(published / predicted, predicted / published)
        opposite = row["quantity"] == "gain" and min(published, predicted) < 1 < max(published, predicted)
        expected = {
            "input": off == pytest.approx(1, rel=1e-3),
            "cannot be told": math.isnan(off),
            "bound holds": published <= predicted,
            "bound broken": published > predicted,
            "close": off <= 1.34 and not opposite,
            "in the stated interval": 1.34 < off <= 1.34**2 and not opposite,
            "wrong": off > 1.34**2 and not opposite,
            "wrong direction": opposite,
        }
        assert expected[row["verdict"]], row
        assert row["verdict"].startswith("bound") <= (cases[row["case"]]["kind"] == "bound"), row
        assert math.isnan(off) or float(row["error"]) == pytest.approx(predicted / published - 1, rel=1e-3, abs=1e-3)


def test_a_prediction_is_never_made_from_its_own_measurement(cases, kept):
    """Otherwise it would be right by construction. Only measurements that fix inputs change an answer."""
    fixing = {case[key].removeprefix(field.FIT) for case in cases.values() for key in field.INPUTS if ":" in case[key]}
    assert fixing == {row["case"] for row in kept if row["verdict"] == field.FITTED} and fixing < cases.keys()
    others = {
        name: case
        if name in fixing or not case["published"]
        else case | {"published": str(2 * float(case["published"]))}
        for name, case in cases.items()
    }
    changed = field.Field(others)
    for row in kept:
        assert changed.row(row["case"])["predicted"] == pytest.approx(float(row["predicted"] or "nan"), nan_ok=True)


@pytest.mark.parametrize(
    ("quantity", "kind", "published", "predicted", "expected"),
    [
        ("gain", "prediction", 2.0, 2.6, field.CLOSE),
        ("gain", "prediction", 2.0, 3.0, field.STATED),
        ("gain", "prediction", 2.0, 4.0, field.WRONG),
        ("gain", "prediction", 4.0, 2.0, field.WRONG),
        ("gain", "prediction", 1.1, 0.9, field.REVERSED),
        ("iteration_ms", "prediction", 1.1, 0.9, field.CLOSE),
        ("gain", "bound", 1.0, 9.0, field.HOLDS),
        ("gain", "bound", 9.0, 1.0, field.BROKEN),
        ("gain", "prediction", math.nan, 1.0, field.OPEN),
        ("gain", "bound", 1.0, math.nan, field.OPEN),
    ],
)
def test_verdicts(quantity, kind, published, predicted, expected):
    assert field.verdict(quantity, kind, published, predicted) == expected


def test_a_job_of_known_costs_is_answered_by_arithmetic():
    """Two workers sum a tensor of 1e9 bits over 1000 Mb/s: half of it goes there and half of it back, in 1 s."""
    case = {"method": "none", "quantity": "sum_ms"}
    inputs = dict.fromkeys(field.INPUTS, math.nan) | {"entries": 1e9 / 32, "workers": 2, "link_mbit": 1000.0}
    assert field.answer(case, inputs) == pytest.approx(1000)
    inputs |= {"computing_ms": 500.0, "local_steps": 6}
    assert field.answer(case | {"quantity": "utilisation"}, inputs) == pytest.approx(100 * 3 / 4)
    inputs |= {"own_ms": 200.0, "ratio": 0.01}
    for method, bytes_each in (("topk", 8), ("randomk", 4)):  # Top-K waits for backward; both hide nothing of their own
        seconds = field.answer({"method": method, "quantity": "iteration_ms"}, inputs) / 1e3
        sent_s = bytes_each * 0.01 * (1e9 / 32) * 8e-9
        assert 0.5 + 0.2 <= seconds <= 0.5 + 0.2 + sent_s * (1 + 1e-6)
