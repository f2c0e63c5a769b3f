"""The clock adds up, and timed steps take in every phase."""

import time

import pytest
import torch
from conftest import make

from harness.training.clock import PARTS, Clock
from harness.training.timed import phase_share, timed_steps


def test_nested_labels_add_up_and_nothing_counts_twice():
    clock = Clock(torch.device("cpu"))
    clock.start()
    with clock("backward"):
        time.sleep(0.02)
        with clock("sparsify"):
            time.sleep(0.01)
        time.sleep(0.02)
    with clock("optimizer"):
        pass
    parts = clock.stop()
    assert sum(parts[f"{p}_s"] for p in PARTS) == pytest.approx(parts["iteration_s"], rel=1e-6)
    assert parts["backward_s"] >= 0.04 and parts["sparsify_s"] >= 0.01
    assert parts["sparsify_s"] < parts["backward_s"]


def test_an_error_inside_leaves_the_outer_label_in_force():
    clock = Clock(torch.device("cpu"))
    clock.start()
    with clock("backward"):
        with pytest.raises(KeyError), clock("sparsify"):
            raise KeyError
        time.sleep(0.01)
    assert clock.stop()["backward_s"] >= 0.01


def test_timed_steps_take_each_phase_of_a_cycle():
    dlgs = make("dlgs")
    steps = timed_steps(dlgs, 3)
    assert [dlgs.phase(s) for s in steps] == ["refresh", "reuse", "reuse", "reuse"]
    assert phase_share(dlgs, "refresh") == 1 / 32 and phase_share(dlgs, "reuse") == 31 / 32
    assert timed_steps(make("none"), 3) == [1, 2, 3]
