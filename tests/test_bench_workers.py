"""bench/workers.py: the same total batch among more workers, and a page of what was trained."""

import sys
from dataclasses import replace

import pandas as pd
import pytest
from support import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import workers

from dlgs_bench.data.cifar10 import Cifar10
from dlgs_bench.report.names import Names
from dlgs_bench.spec import LaunchSettings

NAMES = Names({"none": "uncompressed", "topk": "Top-K"}, {})


@pytest.mark.unit
def test_every_number_of_workers_has_the_same_total_batch_and_schedule():
    specs = [workers.spec_of("topk", number, 0, 1564, "float32") for number in workers.WORKERS]
    assert {spec.training.batch * spec.cluster.workers for spec in specs} == {64}
    assert {spec.steps(Cifar10.train_size) for spec in specs} == {1564}
    ends = [spec.training.learning_rate(1563 / 782) for spec in specs]
    assert ends == pytest.approx([5e-4] * len(specs))  # after both drops of the recipe


@pytest.mark.engine
@pytest.mark.slow
def test_a_finished_run_is_not_repeated_and_its_points_are_tidy(data, tmp_path, monkeypatch):
    spec = workers.spec_of("topk", 2, 0, steps=3, precision="float32")
    spec = replace(spec, measurement=replace(spec.measurement, evaluations=2, test_samples=20, final_test_samples=40))
    settings, folder = LaunchSettings(data_root=str(data)), tmp_path / workers.name_of(spec)
    workers.train(spec, folder, settings)
    table = workers.tidy([folder])
    assert table["step"].tolist() == [2, 3] and table["total_batch"].tolist() == [64, 64]
    assert table["density"].tolist() == pytest.approx([0.01, 0.01], rel=0.01)
    assert table["vnmse"].notna().any() and table["run"].unique() == ["topk-2workers-seed0"]

    launched = []
    monkeypatch.setattr(workers, "launch", lambda spec, *_: launched.append(spec) or 3)
    workers.train(spec, folder, settings)
    assert not launched
    other = replace(spec, training=replace(spec.training, seed=1))
    with pytest.raises(SystemExit, match="3"):
        workers.train(other, folder, settings)
    assert launched == [other]


def rows(method: str, number: int, accuracy: float, seed: int = 0) -> pd.DataFrame:
    run = workers.name_of(workers.spec_of(method, number, seed, 10, "float32"))
    origin = {"machine": "a machine", "network": "loopback", "engine": "torch_dist", "date": "2026-11-26"}
    curve = {"step": [5, 10], "test_accuracy": [0.1, accuracy], "precision": "float32", "commit": "abcdef0"}
    return pd.DataFrame({"run": run, "variant": method, "workers": number, "seed": seed} | origin | curve)


@pytest.mark.unit
def test_the_gap_is_to_uncompressed_with_as_many_workers_and_the_same_seed():
    runs = [rows("none", 2, 0.5), rows("topk", 2, 0.4), rows("none", 4, 0.3), rows("topk", 4, 0.35)]
    runs += [rows("none", 4, 0.32, seed=1), rows("topk", 4, 0.31, seed=1), rows("topk", 8, 0.2)]
    last = workers.ends(pd.concat(runs)).set_index(["variant", "workers", "seed"])
    assert last.loc[("topk", 2, 0), "gap"] == pytest.approx(-0.1)
    assert last.loc[("topk", 4, 1), "gap"] == pytest.approx(-0.01) and pd.isna(last.loc[("topk", 8, 0), "gap"])
    cells = workers.shown(last.reset_index(), NAMES).set_index("Method").loc["Top-K"].to_dict()
    assert cells == {"2 workers of 32": "40.0 (-10.0)", "4 workers of 16": "33.0 ± 2.8 (+2.0 ± 4.2)",
                     "8 workers of 8": "20.0"}  # fmt: skip


@pytest.mark.unit
def test_the_page_says_what_was_trained(tmp_path):
    workers.write(pd.concat([rows("none", 2, 0.5), rows("topk", 2, 0.4), rows("none", 4, 0.3)]), tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert f"`python bench/workers.py {tmp_path} --steps 10 --precision float32` trained" in page
    assert "| Top-K | 40.0 (-10.0) | not run |" in " ".join(page.split())
    assert "a machine; loopback network; torch_dist, 2 or 4 workers; 2026-11-26, commit abcdef0" in page.replace(
        "\u00a0", " "
    )
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "workers.csv", "workers.svg"}


@pytest.mark.unit
def test_a_number_of_workers_that_does_not_divide_the_batch_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        workers.main([str(tmp_path), "--steps", "1", "--workers", "2", "3"])
    assert "--workers: 3 does not divide the total batch of 64" in capsys.readouterr().err
