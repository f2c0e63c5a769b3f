"""The study of alternating sparse and dense steps: as many steps as the bytes pay for, its table and its figure."""

import sys
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import Scheme, describe
from support import CPU, make, read
from test_report import Items, Report
from test_server import Images

from dlgs_bench import plugins
from dlgs_bench.comm.local import run_workers
from dlgs_bench.config import load as config
from dlgs_bench.config.studies import _load
from dlgs_bench.launch.liveness import Progress
from dlgs_bench.spec import Cluster, LaunchSettings, RunSpec
from dlgs_bench.training.train import accuracy

pytestmark = pytest.mark.unit

study = _load("sparse_dense")


@given(
    layers=st.lists(st.integers(1, 5000), min_size=1, max_size=4), ratio=st.floats(0.001, 0.4),
    sparse_steps=st.integers(0, 9), dense_steps=st.integers(1, 20),
)  # fmt: skip
def test_as_many_steps_as_the_bytes_pay_for(layers, ratio, sparse_steps, dense_steps):
    """A loop over single steps finds the same number."""
    method = make("sparse_dense", ratio=ratio, sparse_steps=sparse_steps)
    sparse = sum(8 * max(1, int(ratio * n + 1e-6)) + 8 for n in layers)
    left, steps = 4 * sum(layers) * dense_steps, 0
    while (spent := sparse if method.phase(steps + 1) == "sparse" else 4 * sum(layers)) <= left:
        left, steps = left - spent, steps + 1
    assert study.affordable(layers, ratio, sparse_steps, dense_steps) == steps
    assert sparse_steps or steps == dense_steps


def test_a_run_makes_the_steps_and_sends_the_bytes(tmp_path):
    asked = {"sparse_steps": [0, 3], "ratio": 0.1, "dense_steps": 2, "evaluations": 2} | {
        "test_samples": 8,
        "final_test_samples": 24,
    }
    runs = config.load(read("quick") | {"seeds": [0, 1], "studies": {"sparse_dense": asked}}, "c").studies[
        "sparse_dense"
    ]
    assert len(runs) == 3 * 2
    specs = [spec for name, spec in runs.items() if name.endswith("seed0")]
    assert [spec.scheme.options["sparse_steps"] for spec in specs] == [0, 3, study.NEVER]
    dense = 4 * sum(plugins.describe("models", "resnet20")["layers"])
    for spec in specs:
        assert spec.training.model == "resnet20" and not spec.training.lr_steps and spec.scheme.wire == "indices"
        small = replace(spec, training=replace(spec.training, batch=4), cluster=Cluster(workers=1))
        place = LaunchSettings(checkpoints=str(tmp_path / str(spec.scheme.options["sparse_steps"])))
        (tables,) = run_workers(
            1, lambda comm, s=small, p=place: accuracy(s, comm, Images(), CPU, Progress(tmp_path, comm.rank), p)
        )
        last = tables["points"][-1]
        assert last["step"] == spec.training.train_steps == len(tables["iterations"])
        assert dense < last["sent_bytes"] <= 2 * dense


def test_a_t_can_also_make_equal_steps_at_each_of_several_learning_rates():
    asked = {"sparse_steps": [0, 3], "steps": 40, "lrs": [0.05, 0.01]}
    runs = config.load(read("quick") | {"studies": {"sparse_dense": asked}}, "c").studies["sparse_dense"]
    assert len(runs) == 3 * 2 * 2
    equal = {name: spec for name, spec in runs.items() if study.EQUAL_STEPS in name}
    assert {spec.training.train_steps for spec in equal.values()} == {40}
    assert len({spec.training.train_steps for name, spec in runs.items() if name not in equal}) == 3
    assert {spec.training.lr for name, spec in runs.items() if "-lr0.05-" in name} == {0.05}


@pytest.fixture
def report(tmp_path, monkeypatch):
    def known(kind: str, name: str) -> dict:
        return {"fields": {}} if kind == "methods" else describe(kind, name)

    monkeypatch.setattr(plugins, "describe", known)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    return Report(tmp_path, ("resnet20",))


def test_the_table_has_a_row_for_each_t_and_the_figure_draws_them(report):
    for sparse_steps, seed in product((0, 7, study.NEVER), (0, 1)):
        training = replace(report.runs.training("resnet20"), seed=seed, train_steps=20)
        options = {"ratio": 0.01, "sparse_steps": sparse_steps}
        made_up = {"epoch": [0.1, 0.2], "step": [10, 20], "sent_bytes": [5e6, 1e7], "elapsed_s": 1.0}
        made_up |= {"train_loss": 2.0, "test_accuracy": [0.2, 0.3 + 0.1 * seed]}
        sent = {"step": range(1, 21), "density": 0.1, "sent_bytes": 5e5, "squared_mean": None, "squared_error": None}
        report.runs.write(
            f"accuracy/{sparse_steps}-{seed}", RunSpec("accuracy", training, Scheme("sparse_dense", options=options)),
            points=pd.DataFrame(made_up), iterations=pd.DataFrame(sent),
        )  # fmt: skip
    points = report.folder / "points.csv"
    report.script("studies/sparse_dense/collect.py", Items(*report.runs.every("accuracy", "points.csv")), Items(points))
    table, shown = report.table("studies/sparse_dense/table.py", "t", points=points)
    assert list(table["sparse_steps"]) == [0, 7, study.NEVER] and list(table["dense_steps"]) == [20, 2, 0]
    assert (table["steps"] == 20).all() and (table["seeds"] == 2).all()
    assert table["test_accuracy"].to_numpy() == pytest.approx(0.35) and shown.count("35.0 [30.0, 40.0]") == 3
    assert "never dense" in shown
    assert "Best" not in shown and "Equal" not in shown
    first = pd.read_csv(points)
    more = [first.assign(equal="steps", lr=lr, train_loss=lr, run=first["run"] + f"-{lr}") for lr in (0.1, 0.2)]
    pd.concat([first, *more]).to_csv(both := report.folder / "both.csv", index=False)
    table, shown = report.table("studies/sparse_dense/table.py", "rates", points=both)
    assert table.groupby(["equal", "lr"])["best"].all().to_dict() == {
        ("bytes", first["lr"].iloc[0]): True, ("steps", 0.1): True, ("steps", 0.2): False,
    }  # fmt: skip
    assert "| Learning rate " in shown and "| steps " in shown
    text = report.figure("studies/sparse_dense/figure.py", "rates", Items(points=both))
    assert "at equal bytes" in text and "at equal steps" in text
    text = report.figure("studies/sparse_dense/figure.py", "f", Items(points=points))
    assert "T = 7" in text and "never dense" in text and "n = 2 seeds" in text


def test_a_project_without_the_method_has_no_runs(monkeypatch):
    monkeypatch.setattr(plugins, "usable", lambda kind: ["none"])
    assert not study.runs(config.load(read("quick"), "c").values)
