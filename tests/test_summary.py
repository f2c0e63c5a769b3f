"""From timed iterations to a row of Table 2."""

import math

import pandas as pd
import pytest

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import ABOUT, amortise, over_launches
from dlgs_bench.report.summary import MEASURED, over_all_gather, summarise
from dlgs_bench.stats import pooled, relaunched

pytestmark = pytest.mark.unit


def iterations(timed, phase, share, seconds, block):
    parts = dict.fromkeys(MEASURED, 0.0) | {"forward_s": seconds / 4, "sparsify_s": seconds / 2}
    parts["other_s"] = seconds / 4
    return {"timed": timed, "phase": phase, "share": share, "iteration_s": seconds, "block": block} | parts


def timing_table(rows) -> pd.DataFrame:
    run = dict.fromkeys(ABOUT, "") | {"run": "a", "variant": "dlgs", "workers": 2, "batch": 32, "epochs": 10}
    run |= {"train_samples": 640, "sent_bytes": 8, "received_bytes": 8, "density": 0.1}
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
    assert row["speedup_low"] == row["speedup_high"] == pytest.approx(row["speedup"])
    assert row["dense_s"] == pytest.approx(0.2) and row["blocks"] == 3
    assert row["epoch_s"] == pytest.approx(row["iteration_s"] * 10)
    assert row["training_s"] == pytest.approx(row["epoch_s"] * 10)
    assert sum(row[part] for part in MEASURED) == pytest.approx(row["iteration_s"], rel=1e-6)
    assert row["sparsify_s"] == pytest.approx(row["iteration_s"] / 2)


def test_one_slow_iteration_moves_neither_median_nor_parts():
    rows = [iterations("none", "step", 1.0, s, 1) for s in (0.1, 0.1, 0.1, 0.1, 9.0)]
    assert amortise(timing_table(rows), "iteration_s") == pytest.approx(0.1)
    rows[-1] |= {"forward_s": 9.0, "sparsify_s": 0.0, "other_s": 0.0}  # its parts have other proportions
    table = timing_table(rows).assign(variant="none")
    assert summarise(table).iloc[0]["forward_s"] == pytest.approx(0.025)


def test_launches_are_averaged_and_blocks_are_not():
    """The launches have the medians 1, 2 and 32, of which 4 is the geometric mean. The median would be 2."""
    blocks = {1: (0.5, 1.0, 7.0), 2: (2.0, 2.0, 9.0), 3: (32.0, 30.0, 40.0)}
    rows = {(launch, block): s for launch, own in blocks.items() for block, s in enumerate(own, start=1)}
    values = pd.Series(rows).rename_axis(["launch", "block"])
    assert over_launches(values) == pytest.approx(4)


def test_of_runs_over_all_gather_those_with_the_fewest_workers_of_a_model_count():
    cells = [("a", "allgather", 2), ("a", "allgather", 3), ("a", "ps-weights", 2), ("b", "allgather", 4)]
    rows = pd.DataFrame(cells, columns=["model", "topology", "workers"])
    assert over_all_gather(rows).index.tolist() == [0, 3]


def test_links_that_follow_the_machine_have_the_factors_of_the_blocks():
    rows = [iterations(timed, "step", 1.0, 0.1, block) for block in (1, 2) for timed in ("none", "dlgs")]
    slow = timing_table(rows).assign(slowdown=[0.8, 0.8, 1.25, 1.25])
    row = summarise(slow.assign(rate_mbit=200.0)).iloc[0]
    assert row[["links_low", "links_high"]].tolist() == pytest.approx([0.8, 1.25])
    assert row["links_mbit"] == 205 and tables.links_mbit(row) == "205"  # the middle of 160 and 250
    one = pd.DataFrame([row])
    assert "; set again for each block, to 160 to 250 Mb/s, as" in captions.followed(one)
    assert "; set again for each block, to 0.80 to 1.25 times the rate, as" in captions.followed(
        pd.concat([one, one.assign(rate_mbit=90.0)])
    )
    fast = one.assign(rate_mbit=1660.0, links_low=0.97, links_high=0.97)
    assert "; set again for each block, to 1610 Mb/s, as" in captions.followed(fast)
    assert captions.followed(one.assign(links_low=1.0, links_high=1.001)) == ""
    stated = summarise(timing_table(rows).assign(rate_mbit=1234.5)).iloc[0]
    assert stated[["links_low", "links_high"]].isna().all() and tables.links_mbit(stated) == "1234.5"
    assert tables.links_mbit(summarise(timing_table(rows).assign(rate_mbit=float("nan"))).iloc[0]) == ""


def test_blocks_of_every_launch_count_in_a_table_with_runs_of_one_launch():
    """A run of one launch has no launch number. In a table with other runs its column is empty."""

    def run(name: str, launches: list) -> list[dict]:
        cells = [(launch, block, timed) for launch in launches for block in (1, 2) for timed in ("none", "dlgs")]
        return [
            iterations(timed, "step", 1.0, 0.1, block) | {"run": name, "launch": launch}
            for launch, block, timed in cells
        ]

    table = summarise(timing_table(run("a", [float("nan")]) + run("b", [1.0, 2.0]))).set_index("run")
    assert table["blocks"].to_dict() == {"a": 2, "b": 4} and table["iterations"].to_dict() == {"a": 2, "b": 4}
    assert table["iteration_s"].tolist() == pytest.approx([0.1, 0.1])


def test_launches_vary_as_those_of_every_run_of_the_model_do():
    """One of two runs of a model repeats itself. Both get the interval of the two runs together. Another model,
    launched once, keeps the interval of its blocks."""

    def run(model: str, variant: str, launches: dict) -> list[dict]:
        return [
            iterations(timed, "step", 1.0, seconds if timed == variant else 1.0, block)
            | {"run": f"{model}-{variant}", "model": model, "variant": variant, "launch": launch}
            for launch, seconds in launches.items()
            for block in (1, 2, 3)
            for timed in ("none", variant)
        ]

    rows = run("a", "dlgs", {1.0: 0.5, 2.0: 0.5}) + run("a", "topk", {1.0: 0.8, 2.0: 1.0})
    table = summarise(timing_table(rows + run("b", "dlgs", {float("nan"): 0.5}))).set_index("run")
    spread = pooled([[[0.5, 0.5]], [[0.8, 1.0]]])
    for name, values in (("a-dlgs", [0.5, 0.5]), ("a-topk", [0.8, 1.0])):
        found = relaunched(values, spread)
        assert table.loc[name, "iteration_s"] == pytest.approx(found.value)
        assert table.loc[name, "iteration_s_high"] == pytest.approx(found.high)
        assert table.loc[name, "speedup_low"] == pytest.approx(1 / found.high)
    assert table["launches"].to_dict() == {"a-dlgs": 2, "a-topk": 2, "b-dlgs": 1}
    assert table.loc["b-dlgs", "speedup_low"] == table.loc["b-dlgs", "speedup_high"] == pytest.approx(2)


def test_uncompressed_alone_has_the_interval_of_its_launches():
    """The blocks of a launch are alike, so they would show no difference between launches."""
    rows = [
        iterations("none", "step", 1.0, seconds, block) | {"launch": launch, "variant": "none"}
        for launch, seconds in ((1.0, 0.5), (2.0, 0.6), (3.0, 0.7))
        for block in range(1, 30)
    ]
    (row,) = summarise(timing_table(rows)).to_dict("records")
    found = relaunched([0.5, 0.6, 0.7], pooled([[[0.5, 0.6, 0.7]]]))
    assert (row["iteration_s"], row["iteration_s_high"]) == pytest.approx((found.value, found.high))
    two = pd.DataFrame([one for one in rows if one["launch"] < 3])
    (row,) = summarise(timing_table(two.to_dict("records"))).to_dict("records")
    assert math.isnan(row["iteration_s_high"])  # two launches are too few


def test_the_bound_is_the_shortest_computation_of_a_model_topology_and_number_of_workers():
    def run(name: str, seconds: float, workers: int) -> pd.DataFrame:
        rows = [iterations(timed, "step", 1.0, seconds, block) for timed in ("none", "dlgs") for block in (1, 2, 3)]
        return timing_table(rows).assign(run=name, workers=workers)

    table = summarise(pd.concat([run("a", 0.4, 2), run("b", 0.2, 2), run("c", 0.1, 3)])).set_index("run")
    assert table["bound_s"].to_dict() == pytest.approx({"a": 0.05, "b": 0.05, "c": 0.025})
    assert table["of_bound"].to_dict() == pytest.approx({"a": 0.125, "b": 0.25, "c": 0.25})
