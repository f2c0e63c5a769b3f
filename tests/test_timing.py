"""The clock adds up, and the summary of a timing run is what its docstring says."""

import time
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from conftest import make

from harness.report import style
from harness.training.timed import phase_share, timed_steps
from harness.training.clock import PARTS, Clock
from harness.report.summary import amortise, summarise


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


def iterations(variant, phase, share, seconds, block):
    parts = {f"{p}_s": 0.0 for p in PARTS} | {"forward_s": seconds / 4, "sparsify_s": seconds / 2}
    parts["other_s"] = seconds / 4
    return {"variant": variant, "phase": phase, "share": share, "iteration_s": seconds, "block": block} | parts


def timing_table(rows) -> pd.DataFrame:
    run = {"model": "resnet20", "method": "dlgs", "ratio": 0.1, "topology": "allgather", "network": "loopback"}
    run |= {"rate_mbit": None, "fastest_mbit": None, "measured_mbit": None}
    run |= {"selection": None}
    run |= {"workers": 2, "engine": "local", "data": "cifar10", "stand_in": False, "batch": 32, "epochs": 10}
    run |= {"train_images": 640, "machine": "none", "sent_bytes": 8, "received_bytes": 8, "density": 0.1}
    return pd.DataFrame([run | row for row in rows])


def test_refreshes_are_amortised_and_speedups_are_paired():
    rows = []
    for block, drift in ((1, 1.0), (2, 2.0), (3, 1.0)):  # the whole machine slows down in block 2
        rows += [iterations("none", "step", 1.0, 0.2 * drift, block)] * 3
        rows += [iterations("dlgs", "refresh", 0.25, 0.4 * drift, block)]
        rows += [iterations("dlgs", "reuse", 0.75, 0.1 * drift, block)] * 3
    (row,) = summarise(timing_table(rows)).to_dict("records")
    assert row["iteration_s"] == pytest.approx(0.25 * 0.4 + 0.75 * 0.1)
    assert row["speedup"] == pytest.approx(0.2 / 0.175)
    assert row["speedup_min"] == row["speedup_max"] == pytest.approx(row["speedup"])
    assert row["epoch_s"] == pytest.approx(row["iteration_s"] * 10)
    assert row["training_s"] == pytest.approx(row["epoch_s"] * 10)
    parts = sum(row[f"{p}_s"] for p in PARTS)
    assert parts == pytest.approx(row["iteration_s"], rel=1e-6)
    assert row["sparsify_s"] == pytest.approx(row["iteration_s"] / 2)


def test_one_slow_iteration_moves_neither_median_nor_parts():
    rows = [iterations("none", "step", 1.0, s, 1) for s in (0.1, 0.1, 0.1, 0.1, 9.0)]
    assert amortise(timing_table(rows), "iteration_s") == pytest.approx(0.1)
    table = timing_table(rows).assign(method="none")
    assert summarise(table).iloc[0]["forward_s"] == pytest.approx(0.025)


@pytest.mark.parametrize("topologies", [["allgather", "allgather"], ["allgather", "ps-weights"], ["ps-sparse"]])
def test_tables_show_the_topology_unless_it_is_allgather_everywhere(topologies, tmp_path):
    row = {"model": "resnet20", "data": "cifar10", "stand_in": False, "method": "dlgs", "ratio": 0.1}
    shown = pd.DataFrame([style.run_columns(row | {"topology": topology}) for topology in topologies])
    paths = SimpleNamespace(**{ext: tmp_path / f"t.{ext}" for ext in ("csv", "md", "tex", "html")})
    style.save_table(shown, shown, "caption", paths)
    assert ("Topology" in paths.md.read_text()) == (topologies[-1] != "allgather")
