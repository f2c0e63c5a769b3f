"""Curves of accuracy runs: what a figure with a logarithmic axis shows of every step."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlgs_bench.report.curves import over_steps

pytestmark = pytest.mark.unit


@given(st.lists(st.floats(1e-4, 1), min_size=1, max_size=300), st.integers(1, 40))
def test_ranges_of_steps_hold_every_step_once_and_grow_with_the_step(densities, most):
    table = pd.DataFrame({"step": range(1, len(densities) + 1), "density": densities})
    shown = over_steps(table, "density", most)
    assert 1 <= len(shown) <= most and shown["step"].is_monotonic_increasing
    assert (shown["density_low"] <= shown["density"] * (1 + 1e-9)).all()
    assert (shown["density"] <= shown["density_high"] * (1 + 1e-9)).all()
    assert (shown["density_low"].min(), shown["density_high"].max()) == (min(densities), max(densities))
    assert shown["step"].iloc[0] >= 1 and shown["step"].iloc[-1] <= len(densities)


def test_the_first_steps_are_shown_one_by_one_and_the_last_together():
    table = pd.DataFrame({"step": range(1, 1001), "density": [0.5] + [0.1] * 999})
    shown = over_steps(table, "density", 30)
    assert shown["density"].iloc[0] == 0.5 and shown["step"].iloc[0] == 1
    assert shown["density"].iloc[1:].tolist() == pytest.approx([0.1] * (len(shown) - 1)) and len(shown) > 15
