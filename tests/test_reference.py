"""The kept reference set follows from what is kept with it."""

import json

import pandas as pd
import pytest
from support import ROOT, script_module

from dlgs_bench.timemodel.predict import Calibrations

pytestmark = pytest.mark.unit


def test_the_kept_predictions_are_those_of_todays_time_model_and_the_kept_calibrations():
    """If the time model changes, the answer must be written again."""
    answer, folder = script_module("answer"), ROOT / "results" / "reference" / "calibration"
    calibrated = Calibrations(run.parent for run in folder.glob("*/*/run.json")).each()
    rates = {file.stem: json.loads(file.read_text()) for file in folder.glob("rates/*.json")}
    kept = pd.read_csv(ROOT / "results" / "reference" / "answer.csv")
    predicted = [answer.break_even(row, calibrated, rates) for row in kept.to_dict("records")]
    pd.testing.assert_frame_equal(kept[list(answer.BREAK_EVEN)], pd.DataFrame(predicted), rtol=1e-3)
    assert kept["break_even_mbit"].notna().all()
    assert (kept["break_even_low_mbit"] < kept["break_even_mbit"]).all()


def test_only_results_of_its_own_configuration_are_kept(tmp_path, monkeypatch):
    reference = script_module("reference")
    results = tmp_path / "results"
    for name, folder in {
        "ROOT": tmp_path,
        "KEPT": results / "reference",
        "RUNS": results / "runs" / "reference",
    }.items():
        monkeypatch.setattr(reference, name, folder)
    monkeypatch.setattr(reference.result_set, "write_record", lambda folder, facts: None)
    run, figures = results / "runs" / "reference" / "timing" / "one" / "run.json", tmp_path / "figures"
    run.parent.mkdir(parents=True)
    figures.mkdir()
    tables = ("timing.csv", "answer.md", "findings.md", "so_far.csv", "planners_timing.csv")
    for path in (*(results / name for name in tables), figures / "figure11.svg", figures / "rates.svg"):
        path.write_text(path.name)
    (results / "provenance.json").write_text('{"first_run": "2026-11-30", "last_run": "2026-11-30"}')
    run.write_text('{"provenance": {"date": "2026-11-29"}}')  # of an earlier session
    with pytest.raises(
        SystemExit, match="error: results/ has runs that are not in results/runs/reference; run snakemake"
    ):
        reference.keep()
    assert not (results / "reference").exists()
    run.write_text('{"provenance": {"date": "2026-11-30"}}')
    reference.keep()
    kept = {path.name for path in (results / "reference").iterdir()}
    assert kept == {"timing.csv", "answer.md", "findings.md", "figure11.svg", "provenance.json"}
