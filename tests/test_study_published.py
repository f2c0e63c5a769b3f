"""The study of published accuracies: its runs, and its verdicts on made-up ones."""

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support import ROOT, read, rows_of
from test_report import Items, Report

from dlgs_bench import plugins
from dlgs_bench.config import load as config
from dlgs_bench.spec import RunSpec

pytestmark = pytest.mark.unit

STUDY = ROOT / "workflow" / "studies" / "published"
PUBLISHED = STUDY / "published.csv"


def runs_of(**study) -> dict[str, RunSpec]:
    return config.load(read("quick") | {"studies": {"published": study}}, "c").studies["published"]


def test_every_row_with_a_variant_has_a_run_with_its_optimizer():
    runs, learnt = runs_of(train_epochs=0.2), read("quick")["models"]["resnet20"]["lr"]
    rows = {(row["variant"], row["ratio"]): row for row in rows_of(PUBLISHED) if row["variant"]}
    assert len(rows) == len(runs) == 16
    for spec in runs.values():
        row = rows[spec.variant, str(spec.ratio or "")]
        assert spec.scheme.method == row["method"]
        feedback = {"": None, "true": True, "false": False}[row["error_feedback"]]
        assert spec.scheme.options.get("error_feedback") == feedback
        assert spec.training.momentum == (0.0 if row["optimizer"] == "plain" else 0.9)
        assert (spec.training.train_epochs, spec.training.lr) == (0.2, learnt)
    assert {spec.ratio for spec in runs_of(ratios=[0.01]).values()} == {None, 0.01}


def test_every_row_has_a_source_and_either_a_run_or_a_reason():
    rows = rows_of(PUBLISHED)
    assert all(row["source"] and bool(row["variant"]) != bool(row["not_measured"]) for row in rows)
    assert len({row["method"] for row in rows} - {"none"}) == 8 and len({row["source"] for row in rows}) == 4
    assert {row["method"] for row in rows} <= set(plugins.names("methods"))


def test_the_long_configuration_trains_every_row_with_a_variant_for_ten_epochs():
    runs = config.load(read("published"), "config/published.yaml").studies["published"]
    assert runs.keys() == runs_of().keys() and {spec.training.train_epochs for spec in runs.values()} == {10}


def test_it_needs_the_model_and_trains_the_methods_and_ratios_that_it_has(monkeypatch):
    without = read("quick")
    without["models"].pop("resnet20")
    without["models"]["vgg16"]["train_epochs"] = 0.01
    assert config.load(without, "c").studies["published"] == {}
    known = plugins.usable("methods")
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "usable", lambda kind: [name for name in known if name != "randomk"])
        assert not any(spec.scheme.method == "randomk" for spec in runs_of().values()) and len(runs_of()) == 12
    with pytest.raises(
        config.ConfigError, match=r"studies.published.ratios.0: 0.5 is not valid; give one of: 0.1, 0.01"
    ):
        runs_of(ratios=[0.5])


# The published accuracies of GRACE by run, in the order of the runs.
ACCURACIES = pd.read_csv(PUBLISHED).dropna(subset="variant").drop_duplicates(["variant", "ratio"])["top1"] / 100
EQUAL = ACCURACIES * 0 + 0.5


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """The table and its Markdown of runs that ended with these accuracies, in the order of the published rows."""
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # scripts send theirs to a log

    def judge(*accuracies, samples: int = 10_000) -> tuple[pd.DataFrame, str, Report, list[Path]]:
        """``accuracies``: of each seed."""
        made = Report(tmp_path, ("resnet20",))
        found = []
        for seed, of_seed in enumerate(accuracies):
            for (name, spec), accuracy in zip(runs_of().items(), of_seed, strict=True):
                points = pd.DataFrame([{"step": 312, "sent_bytes": 2.4e9, "test_accuracy": accuracy}])
                spec = replace(spec, training=replace(spec.training, seed=seed))
                found.append(made.runs.write(f"{name}-{seed}", spec, points=points) / "points.csv")
        params, inputs = {"test_samples": samples}, {"points": found, "published": PUBLISHED}
        return *made.table("studies/published/table.py", "published", params, **inputs), made, found

    return judge


def test_accuracies_as_published_agree_in_everything(judged):
    table, shown, made, points = judged(ACCURACIES)
    measured = table[table["measured_gap"].notna()]
    assert measured["published_gap"].tolist() == measured["measured_gap"].tolist()
    assert "Directions: agrees 4, contradicts 0, cannot be told 0." in shown
    assert "contradicts 0, cannot be told 0. One seed shows gaps of more than 1." in shown
    assert "as that: Top-K 0.1, no feedback; Top-K 0.01, no feedback; random-k 0.1, no feedback; random-k" in shown
    assert (
        "| 2,400 " in shown
        and "| +0.00 ± " in shown
        and "| -6.20 ± " in shown
        and "312 steps of 2 x 32 samples" in shown
    )
    inputs = Items(table=made.folder / "published.csv", points=points)
    text = made.figure("studies/published/figure.py", "published-figure", inputs)
    assert "Top-K 0.01, no feedback" in text and "random-k 0.1, with feedback" in text
    assert text.count("not measured") == 8  # both sign methods, ResNet-18 with Top-K, DGC on ImageNet


def test_only_rows_of_one_source_and_optimizer_are_compared(judged):
    table, shown, *_ = judged(ACCURACIES)
    alone = table[table["source"].str.startswith("MLS-Bench")]
    assert alone["measured_accuracy"].notna().all() and alone["published_gap"].isna().all()
    assert "no uncompressed run published" in shown
    assert "not measured here: ResNet-18 is not among our models" in shown
    counted = table.groupby(["source", "optimizer"])[["agrees", "contradicts", "cannot be told"]].sum().sum(axis=1)
    assert (counted[counted > 0].index.get_level_values("source").str.startswith("GRACE")).all()


def test_accuracies_the_other_way_round_contradict(judged):
    _, shown, *_ = judged(1.2 - ACCURACIES)
    assert "Directions: agrees 0, contradicts 4, cannot be told 0. Pairs in order: agrees 0, contradicts" in shown


@pytest.mark.parametrize("accuracies, samples", [(EQUAL, 10_000), (ACCURACIES.clip(lower=0.85), 30)])
def test_what_the_test_set_cannot_tell_is_said_to_be_open(judged, accuracies, samples):
    table, shown, *_ = judged(accuracies, samples=samples)
    assert "Directions: agrees 0, contradicts 0, cannot be told 4." in shown
    assert table["cannot be told"].sum() > 0 and not table[["agrees", "contradicts"]].any(axis=None)


def test_seeds_that_differ_widen_the_standard_error(judged):
    """Two seeds that differ by 10 points around the published accuracy."""
    table, shown, *_ = judged(ACCURACIES - 0.05, ACCURACIES + 0.05)
    row = table[(table["variant"] == "topk-dropped") & (table["ratio"] == 0.01)].iloc[0]
    images = sum(p * (1 - p) for p in (0.8477, 0.9097)) / 10_000
    assert row["measured_error"] == pytest.approx(2 * (images + 2 * 0.05**2) ** 0.5, rel=1e-4)
    assert "2 seeds show gaps of more than" in shown
