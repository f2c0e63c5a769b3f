"""The study of published accuracies: its runs, and its verdicts on made-up ones."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, read, rows_of
from test_report import Items, Report

from dlgs_bench import plugins
from dlgs_bench.config import load as config
from dlgs_bench.spec import RunSpec

pytestmark = pytest.mark.unit

STUDY = ROOT / "workflow" / "studies" / "published"
PUBLISHED = STUDY / "published.csv"


def runs_of(**study) -> dict[str, RunSpec]:
    return config.load(read("quick") | {"studies": {"published": study}}, "c").studies["published"]


def test_every_published_accuracy_has_a_run_with_its_optimizer():
    runs, learnt = runs_of(train_epochs=0.2), read("quick")["models"]["resnet20"]["lr"]
    rows = rows_of(PUBLISHED)
    assert len(rows) == len(runs) == 10 and all(row["source"] for row in rows)
    for row, spec in zip(rows, runs.values(), strict=True):
        assert (spec.scheme.method, spec.variant, str(spec.ratio or "")) == (
            row["method"],
            row["variant"],
            row["ratio"],
        )
        assert (
            spec.scheme.options.get("error_feedback") == {"": None, "true": True, "false": False}[row["error_feedback"]]
        )
        assert spec.training.momentum == (0.0 if row["optimizer"] == "plain" else 0.9)
        assert (spec.training.train_epochs, spec.training.lr) == (0.2, learnt)
    assert {spec.ratio for spec in runs_of(ratios=[0.01]).values()} == {None, 0.01}


def test_it_needs_the_model_the_methods_and_ratios_that_were_published(monkeypatch):
    without = read("quick")
    without["models"].pop("resnet20")
    without["models"]["vgg16"]["train_epochs"] = 0.01
    assert config.load(without, "c").studies["published"] == {}
    known = plugins.usable("methods")
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "usable", lambda kind: [name for name in known if name != "randomk"])
        assert runs_of() == {}
    with pytest.raises(
        config.ConfigError, match=r"studies.published.ratios.0: 0.5 is not valid; give one of: 0.1, 0.01"
    ):
        runs_of(ratios=[0.5])


ACCURACIES = pd.read_csv(PUBLISHED)["top1"] / 100
EQUAL = ACCURACIES * 0 + 0.5


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """The table and its Markdown of runs that ended with these accuracies, in the order of the published rows."""
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # scripts send theirs to a log

    def judge(accuracies, samples: int = 10_000) -> tuple[pd.DataFrame, str, Report, list[Path]]:
        made = Report(tmp_path, ("resnet20",))
        found = []
        for (name, spec), accuracy in zip(runs_of().items(), accuracies, strict=True):
            points = pd.DataFrame([{"step": 312, "test_accuracy": accuracy}])
            found.append(made.runs.write(name, spec, points=points) / "points.csv")
        params, inputs = {"test_samples": samples}, {"points": found, "published": PUBLISHED}
        return *made.table("studies/published/table.py", "published", params, **inputs), made, found

    return judge


def test_accuracies_as_published_agree_in_everything(judged):
    table, shown, made, points = judged(ACCURACIES)
    assert table["published_gap"].dropna().tolist() == table["measured_gap"].dropna().tolist()
    assert "Directions: agrees 4, contradicts 0, cannot be told 0." in shown
    assert "Pairs in order: agrees 10, contradicts 0, cannot be told 0." in shown
    assert shown.count("no gap published") == 4  # both methods with error feedback, at both ratios
    assert "| +0.00 ± " in shown and "| -6.20 ± " in shown and "312 steps of 2 x 32 samples" in shown
    inputs = Items(table=made.folder / "published.csv", points=points)
    text = made.figure("studies/published/figure.py", "published-figure", inputs)
    assert "Top-K 0.01, no feedback" in text and "random-k 0.1, with feedback" in text


def test_accuracies_the_other_way_round_contradict(judged):
    _, shown, *_ = judged(1.2 - ACCURACIES)
    assert "Directions: agrees 0, contradicts 4, cannot be told 0." in shown and "agrees 0, contradicts 10" in shown


@pytest.mark.parametrize("accuracies, samples", [(EQUAL, 10_000), (ACCURACIES.clip(lower=0.85), 30)])
def test_what_the_test_set_cannot_tell_is_said_to_be_open(judged, accuracies, samples):
    table, shown, *_ = judged(accuracies, samples)
    assert "Directions: agrees 0, contradicts 0, cannot be told 4." in shown
    assert table["cannot be told"].sum() == 20
