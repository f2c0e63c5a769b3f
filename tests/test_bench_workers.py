"""bench/workers.py: the same total batch among more workers, resumable, and a page of what was trained."""

import sys
from dataclasses import replace

import pandas as pd
import pytest
from conftest import CPU, ROOT

sys.path.insert(0, str(ROOT / "bench"))
import workers

from dlgs_bench.data.cifar10 import Cifar10
from dlgs_bench.report.names import Names

pytestmark = pytest.mark.unit

NAMES = Names({"none": "uncompressed", "topk": "Top-K"}, {})


@pytest.fixture(scope="module")
def images(data) -> Cifar10:
    return Cifar10(data, CPU)


def short(method: str, number: int):
    """A spec of three steps with two points, tested on few images."""
    spec = workers.spec_of(method, number, 0, steps=3, precision="float32")
    return replace(spec, measurement=replace(spec.measurement, evaluations=2, test_samples=20, final_test_samples=40))


def test_every_number_of_workers_has_the_same_total_batch_and_schedule():
    specs = [workers.spec_of("topk", number, 0, 1564, "float32") for number in workers.WORKERS]
    assert {spec.training.batch * spec.cluster.workers for spec in specs} == {64}
    assert {spec.steps(Cifar10.train_size) for spec in specs} == {1564}
    ends = [spec.training.learning_rate(1563 / 782) for spec in specs]
    assert ends == pytest.approx([5e-4] * len(specs))  # after both drops of the recipe


@pytest.mark.slow
def test_a_finished_run_is_not_repeated_and_a_stopped_one_goes_on_to_the_same_curve(images, tmp_path, monkeypatch):
    spec = short("topk", 4)
    whole = workers.train(spec, images, tmp_path / "whole", every_s=1e9)
    assert [point["step"] for point in whole["points"]] == [2, 3] and not (tmp_path / "whole" / "checkpoints").exists()
    assert whole["points"][0]["density"] == pytest.approx(0.01, rel=0.01)

    class Stop(Exception):
        pass

    def stopped(self, done, total):
        if done == 3:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(workers.Report, "__call__", stopped)
        with pytest.raises(Stop):
            workers.train(spec, images, tmp_path / "stopped", every_s=0)
    assert (tmp_path / "stopped" / "checkpoints").exists()
    resumed = workers.train(spec, images, tmp_path / "stopped", every_s=1e9)
    for before, after in zip(whole["points"], resumed["points"], strict=True):
        assert before | {"elapsed_s": 0} == after | {"elapsed_s": 0}

    monkeypatch.setattr(workers, "run_workers", None)
    assert workers.train(spec, images, tmp_path / "whole", every_s=1e9) == whole


def record(method: str, number: int, accuracy: float, seed: int = 0) -> dict:
    spec = workers.spec_of(method, number, seed, 10, "float32")
    known = {"machine": "a machine", "network": "no", "date": "2026-11-26T10:00:00+00:00", "commit": "abcdef0"}
    curve = [{"epoch": step / 782, "step": step, "test_accuracy": value, "density": 0.01, "vnmse": 1.0}
             for step, value in ((5, 0.1), (10, accuracy))]  # fmt: skip
    return {"spec": spec_dict(spec), "provenance": known, "points": curve}


def spec_dict(spec) -> dict:
    return workers.json.loads(spec.to_json())


def test_the_gap_is_to_uncompressed_with_as_many_workers_and_the_same_seed():
    records = [record("none", 2, 0.5), record("topk", 2, 0.4), record("none", 4, 0.3), record("topk", 4, 0.35)]
    records += [record("none", 4, 0.32, seed=1), record("topk", 4, 0.31, seed=1), record("topk", 8, 0.2)]
    last = workers.ends(workers.tidy(records)).set_index(["variant", "workers", "seed"])
    assert last.loc[("topk", 2, 0), "gap"] == pytest.approx(-0.1)
    assert last.loc[("topk", 4, 1), "gap"] == pytest.approx(-0.01) and pd.isna(last.loc[("topk", 8, 0), "gap"])
    cells = workers.shown(last.reset_index(), NAMES).set_index("Method").loc["Top-K"].to_dict()
    assert cells == {"2 workers of 32": "40.0 (-10.0)", "4 workers of 16": "33.0 ± 2.8 (+2.0 ± 4.2)",
                     "8 workers of 8": "20.0"}  # fmt: skip


def test_the_page_says_what_was_trained(tmp_path):
    workers.write([record("none", 2, 0.5), record("topk", 2, 0.4), record("none", 4, 0.3)], tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert f"`python bench/workers.py {tmp_path} --steps 10 --precision float32` trained" in page
    assert "| Top-K | 40.0 (-10.0) | not run |" in " ".join(page.split())
    assert "a machine; no network; threads, 2 or 4 workers; 2026-11-26, commit abcdef0" in page.replace("\u00a0", " ")
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "workers.csv", "workers.svg"}


def test_a_number_of_workers_that_does_not_divide_the_batch_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        workers.main([str(tmp_path), "--steps", "1", "--workers", "2", "3"])
    assert "--workers: 3 does not divide the total batch of 64" in capsys.readouterr().err
