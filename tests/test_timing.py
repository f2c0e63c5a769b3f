"""The clock adds up, and timed steps take in every phase."""

from types import SimpleNamespace

import pytest
from conftest import CPU, make

from harness.training import clock as module
from harness.training.clock import PARTS, Clock
from harness.training.timed import phase_share, timed_steps

pytestmark = pytest.mark.unit


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time in seconds that clocks see, to be set."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_nested_labels_add_up_and_nothing_counts_twice(now):
    clock = Clock(CPU)
    clock.start()
    now[0] += 1
    with clock("backward"):
        now[0] += 2
        with clock("sparsify"):
            now[0] += 4
        now[0] += 8
    with clock("optimizer"):
        now[0] += 16
    now[0] += 32
    expected = dict.fromkeys(PARTS, 0.0) | {"other": 33, "backward": 10, "sparsify": 4, "optimizer": 16}
    assert clock.stop() == {f"{part}_s": seconds for part, seconds in expected.items()} | {"iteration_s": 63}


def test_an_error_inside_leaves_the_outer_label_in_force(now):
    clock = Clock(CPU)
    clock.start()
    with clock("backward"):
        with pytest.raises(KeyError), clock("sparsify"):
            raise KeyError
        now[0] += 1
    assert clock.stop()["backward_s"] == 1


def test_timed_steps_take_each_phase_of_a_cycle():
    dlgs = make("dlgs")
    steps = timed_steps(dlgs, 3)
    assert [dlgs.phase(s) for s in steps] == ["refresh", "reuse", "reuse", "reuse"]
    assert phase_share(dlgs, "refresh") == 1 / 32 and phase_share(dlgs, "reuse") == 31 / 32
    assert timed_steps(make("none"), 3) == [1, 2, 3]
