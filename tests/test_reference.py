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
