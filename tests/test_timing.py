"""The clock adds up, and timed steps take in every phase."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import CPU, make
from test_server import Images

from dlgs_bench import device
from dlgs_bench.comm.local import run_workers
from dlgs_bench.launch import launcher
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training import clock as clocks
from dlgs_bench.training.clock import PARTS, Clock
from dlgs_bench.training.timed import phase_share, planners, remaining_blocks, timed_steps

pytestmark = pytest.mark.unit


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time in seconds that clocks see, to be set."""
    now = [1000.0]
    for module in (device, clocks):
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


def test_blocks_are_added_while_another_fits_into_the_launchs_share(monkeypatch):
    monkeypatch.setattr("dlgs_bench.training.timed.since_start_s", lambda: 40.0)
    assert remaining_blocks(LaunchSettings(launch_budget_s=100.0), spent_s=10.0, blocks=2) == 12
    one_second_short = LaunchSettings(launch_budget_s=44.0)
    assert remaining_blocks(one_second_short, spent_s=10.0, blocks=2) == 0
    assert remaining_blocks(LaunchSettings(), spent_s=10.0, blocks=2) == 0  # no budget


def test_a_run_without_a_budget_has_launches_without_a_budget():
    spec = RunSpec("exchanges", measurement=Measurement(budget_s=0.0))
    assert launcher._launch_budget_s(spec, 20.0, 0) is None
    assert launcher._launch_budget_s(replace(spec, measurement=Measurement(budget_s=15.0)), 20.0, 0) == 0.0


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_launches_share_what_is_left_of_the_budget(budget_s, waits):
    """A long or repeated launch leaves less time for the others. The remaining time is never negative."""
    spec = RunSpec("timing", measurement=Measurement(launches=len(waits), budget_s=budget_s))
    spent_s = 0.0
    for launched, wait_s in enumerate(waits):
        launch_budget_s = launcher._launch_budget_s(spec, spent_s, launched)
        assert launch_budget_s >= 0 and launch_budget_s * (len(waits) - launched) <= max(0.0, budget_s - spent_s) + 1e-6
        spent_s += wait_s + launch_budget_s
    assert spent_s <= budget_s + sum(waits) + 1e-6


def test_every_bucketing_of_uncompressed_takes_turns_with_the_plans():
    """Plans with the same groups are timed once. Uncompressed is timed with the groups of its own plan."""
    dense = {"method": "none", "variant": "none", "options": {}, "bucket_bytes": 2**23, "planner": "layer"}
    baselines = {"none": dense, "none-planned": dense | {"bucketing": "planned", "groups": ((0, 3), (3, 59))}}
    plans = {"all": ((0, 59),), "size": ((0, 59),), "paper": ((0, 30), (30, 59))}
    scheme = Scheme("dlgs", options={"ratio": 0.1}, planner="paper", plans=plans, timed_with=baselines)
    training = Training("resnet20", batch=4, epochs=1, train_epochs=1)
    spec = RunSpec("planners", training, scheme, Cluster(workers=2), Measurement(blocks=2, repeats=2))

    def work(comm):
        return planners(spec, comm, Images(), CPU, lambda *progress: None, LaunchSettings())

    found = run_workers(2, work)[0]
    assert {row["variant"] for row in found["iterations"]} == {"none", "none-planned", "all", "paper"}
    for name in ("none", "paper"):  # no step twice: randomness would draw the same numbers again
        steps = [row["step"] for row in found["iterations"] if row["variant"] == name]
        assert len(set(steps)) == len(steps) >= 4, name
    groups: dict[str, list] = {}
    for row in found["groups"]:
        groups.setdefault(row["variant"], []).append((row["start"], row["stop"]))
    assert sorted(groups.pop("none-planned")) == [(0, 3), (3, 59)]
    assert {name: len(own) for name, own in groups.items()} == {"none": 1, "all": 1, "size": 1, "paper": 2}
