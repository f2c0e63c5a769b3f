"""The claims about OmniReduce, hybrid parallelism and alternating dense steps, on made-up tables of their studies."""

import pandas as pd
import pytest

from dlgs_bench.paper.claims import FAILS, HOLDS, UNKNOWN
from dlgs_bench.paper.systems import (
    UNTESTED,
    alternating,
    at_best_rate,
    compare,
    halving_doubling,
    hybrid,
    omnireduce,
    shown,
)

pytestmark = pytest.mark.unit

NO = float("nan")


def spread(column: str, value: float) -> dict:
    return {column: value, f"{column}_low": value / 1.1, f"{column}_high": value * 1.1}


def sums(**speedups: float) -> pd.DataFrame:
    """Rows of sums. ``speedups``: OmniReduce against the ring by shape, "<aggregators>x<streams>"; others have 1."""
    shape = {
        "workers": 4,
        "dedicated": False,
        "block": 256,
        "fused": 32,
        "positions": "random",
        "repeats": 5,
        "disturbed": NO,
        "bytes": 600,
    }
    shape |= {"rate_mbit": 200.0, "latency_ms": 0.0, "disturbed": NO, "bytes": 600, "entries": 1000, "seconds": 1.0}
    rows = [
        shape | {"aggregators": int(name[1]), "in_flight": int(name[3]), "density": density, "way": way}
        | {"messages": {"halving-doubling": 4}.get(way, 6), "bound": 1.5 / density}
        | {"streams": int(name[1]) * int(name[3])} | spread("speedup", speedup if way == "omnireduce" else 1.0)
        | ({"speedup_low": 1.0, "speedup_high": 1.0} if way == "ring" else {})  # a ring against itself
        for name, speedup in speedups.items()
        for density in (1.0, 0.1)
        for way in ("omnireduce", "ring", "halving-doubling")
    ]  # fmt: skip
    return pd.DataFrame(rows)


TRAINING = pd.DataFrame(
    {"model": model, "workers": 2, "ratio": ratio, "method": method, "way": "omnireduce", "blocks": 3, "bound": 5.0}
    | {"disturbed": NO} | spread("gain", gain)
    for model, ratio, method, gain in (("embedding", NO, "none", 2.0), ("vgg16", 0.1, "block_topk", 0.5))
)  # fmt: skip
LAYERS = pd.DataFrame({"model": ["embedding", "vgg16"], "entries": 100, "density": [0.03, 1.0]})


def verdicts(rows, start: str) -> list[str]:
    found = [row["verdict"] for row in rows if row["statement"].startswith(start)]
    assert found
    return found


@pytest.mark.parametrize("speedup, verdict", [(3.0, HOLDS), (0.5, FAILS), (1.0, UNKNOWN)])
def test_a_speed_is_judged_by_its_whole_interval(speedup, verdict):
    rows = list(omnireduce(sums(s4x4=speedup), TRAINING, LAYERS))
    for start in ("A sum with 100 %", "A sum with 10 %", "Where the bytes allow"):
        assert verdicts(rows, start) == [verdict]
    assert verdicts(rows, "A model whose") == [HOLDS] and verdicts(rows, "So does") == [FAILS]
    assert verdicts(rows, "An embedding's") == verdicts(rows, "A convolutional") == [HOLDS]
    assert verdicts(rows, "Its latency with RDMA") == [UNTESTED]


def test_a_library_is_judged_by_its_fastest_dense_sum():
    """OmniReduce is 1.5 times as fast as the ring, and another dense sum twice as fast as the ring."""
    table = sums(s4x4=1.5)
    dense = table["density"] == 1
    twice = spread("speedup", 2.0)
    table.loc[dense & (table["way"] == "halving-doubling"), list(twice)] = list(twice.values())
    rows = [row for row in omnireduce(table, TRAINING, LAYERS) if "library" in row["statement"]]
    assert [row["value"] for row in rows] == pytest.approx([0.75, 0.75])
    both = 1.1**2**0.5  # the noise of both, each a factor of 1.1
    assert [row["high"] for row in rows] == pytest.approx([0.75 * both, 0.75 * both])
    assert all("against halving-doubling" in row["where"] and row["verdict"] == FAILS for row in rows)


def test_a_disturbed_run_tells_nothing():
    rows = omnireduce(sums(s4x4=3.0).assign(disturbed="other work"), TRAINING, LAYERS)
    assert verdicts(rows, "A sum with") == [UNKNOWN] * 2
    shapes = sums(s1x1=1.0, s1x4=2.0, s4x1=3.0, s4x4=1.0)
    first = (shapes["aggregators"] == 1) & (shapes["in_flight"] == 1)
    rows = list(omnireduce(shapes.assign(disturbed=first.map({True: "other work", False: None})), TRAINING, LAYERS))
    compared = [row for row in rows if "fused 32, " in row.get("where", "")]
    found = {row["where"].rpartition("32, ")[2]: row["why"] == "disturbed" for row in compared}
    assert found == {
        "in flight 1: 4 against 1": True, "aggregators 1: 4 against 1": True,
        "in flight 4: 4 against 1": False, "aggregators 4: 4 against 1": False,
    }  # fmt: skip


def test_shapes_are_compared_with_all_else_alike():
    rows = list(omnireduce(sums(s1x1=1.0, s1x4=2.0, s4x1=3.0, s4x4=1.0), TRAINING, LAYERS))
    values = {row["where"]: row["value"] for row in rows if row["statement"].startswith(("As many", "More streams"))}
    assert values == {
        f"4 workers, shared aggregators, block 256, fused 32, {rest} against 1": value
        for rest, value in (("in flight 1: 4", 3.0), ("in flight 4: 4", 0.5), ("aggregators 1: 4", 2.0),
                            ("aggregators 4: 4", pytest.approx(1 / 3)))
    }  # fmt: skip


def test_options_that_give_a_small_tensor_no_more_streams_are_not_compared():
    rows = omnireduce(sums(s1x1=1.0, s1x4=2.0, s4x1=3.0, s4x4=1.0).assign(streams=1), TRAINING, LAYERS)
    assert not [row for row in rows if row["statement"].startswith(("As many", "More streams"))]


@pytest.mark.parametrize("column, statement", [("fused", "Several blocks in a message"), ("block", "Larger blocks")])
def test_sizes_of_blocks_and_messages_are_compared_with_all_else_alike(column, statement):
    small = sums(s4x4=1.0).assign(**{column: 1})
    rows = list(omnireduce(pd.concat([small, sums(s4x4=3.0)]), TRAINING, LAYERS))
    (row,) = [row for row in rows if row["statement"].startswith(statement)]
    assert row["verdict"] == HOLDS and row["value"] == pytest.approx(3) and row["where"].endswith(" against 1")
    assert not any(row["statement"].startswith(statement) for row in omnireduce(small, TRAINING, LAYERS))


def test_a_wide_area_is_told_apart():
    near = sums(s4x4=3.0)
    both = pd.concat([near, sums(s1x1=2.0).assign(rate_mbit=50.0, latency_ms=50.0)])
    rows = list(halving_doubling(both))
    assert [row["where"] for row in rows] == ["4 workers"] * 2 + ["4 workers over 50 Mb/s and 50 ms"] * 2
    compared = ("As many", "More streams")
    assert not any(row["statement"].startswith(compared) for row in omnireduce(both, TRAINING, LAYERS))


def test_halving_doubling_is_judged_by_all_undisturbed_runs_in_any_order():
    one = sums(s4x4=1.0)
    speedups = (1.5, 1.4, 1.45, 0.5)
    runs = [one.assign(speedup=s, disturbed="other work" if s < 1 else None) for s in speedups]
    for order in (runs, runs[::-1]):
        rows = list(halving_doubling(pd.concat(order, ignore_index=True)))
        (row,) = [row for row in rows if row["statement"].startswith("Halving-doubling is faster")]
        assert (row["n"], row["verdict"]) == (3, HOLDS) and row["value"] == pytest.approx(1.45)


def test_messages_and_bytes_are_exact():
    assert verdicts(halving_doubling(sums(s4x4=1.0)), "Halving-doubling sends") == [HOLDS]
    more = sums(s4x4=1.0).assign(messages=6)
    assert verdicts(halving_doubling(more), "Halving-doubling sends") == [FAILS]


LEARNING = pd.DataFrame(
    {"model": "net", "way": way, "step": 9, "seed": seed, "train_accuracy": 0.5}
    for way in ("hybrid", "data-parallel")
    for seed in range(3)
)


def hybrids(**seconds: float) -> pd.DataFrame:
    """Rows of hybrids. ``seconds``: of an iteration by "<model>_<workers>"; a ring takes 1."""
    return pd.DataFrame(
        {"model": name.rsplit("_", 1)[0], "workers": int(name.rsplit("_", 1)[1]), "way": way, "repeats": 3}
        | {"disturbed": NO, "sender": "server" if way == "served" else "worker", "bytes": 1 if way == "hybrid" else 2}
        | spread("iteration_s", own if way == "hybrid" else 1.0)
        for name, own in seconds.items()
        for way in ("hybrid", "ring", "served")
    )  # fmt: skip


def test_gains_of_hybrids_are_compared_by_classes_and_by_workers():
    rows = list(hybrid(hybrids(net_2=1.0, net_100_2=0.5, net_4=2.0, net_100_4=0.5, net_84_4=0.25), LEARNING))
    assert verdicts(rows, "It relieves") == [HOLDS] * 5
    values = {row["where"]: row["value"] for row in rows if row["statement"].startswith("The gain is larger")}
    expected = {f"{n} workers: gain of net_100 divided by the gain of net": 2.0 * (n / 2) for n in (2, 4)}
    assert values == pytest.approx(expected | {"4 workers: gain of net_84 divided by the gain of net": 8.0})
    assert verdicts(rows, "Its speed-up decays") == [UNKNOWN] * 2 and verdicts(rows, "Its accuracy") == [HOLDS]
    larger = list(hybrid(hybrids(net_2=1.0, net_4=0.5, net_8=1.0), LEARNING))  # 2 has no data-parallel backbone
    assert verdicts(larger, "Its speed-up decays") == [FAILS]


def test_a_disturbed_run_of_a_hybrid_is_said_to_be_disturbed():
    table = hybrids(net_2=1.0, net_4=0.5, net_8=1.0)
    disturbed = (table["workers"] == 8) & (table["way"] == "ring")
    table["disturbed"] = disturbed.map({True: "other work", False: None})
    rows = [row for row in hybrid(table, LEARNING) if row["statement"].startswith(("It trains", "Its speed-up"))]
    assert [row["why"].partition(";")[0] for row in rows if row["verdict"] == UNKNOWN] == [
        "one worker has the whole backbone", "disturbed", "disturbed",
    ] and all(row["n"] > 0 for row in rows)  # fmt: skip


def test_one_worker_with_the_whole_backbone_is_not_data_parallel():
    """Half of two workers is one worker, which exchanges no gradient of the backbone."""
    rows = list(hybrid(hybrids(net_2=0.5, net_4=0.5), LEARNING))
    assert verdicts(rows, "It trains faster") == [UNKNOWN, HOLDS]


@pytest.mark.parametrize(
    "apart, verdict",
    [
        ((0.0, 0.0, 0.0), HOLDS),
        ((-0.002, 0.002, -0.002), HOLDS),
        ((0.02, 0.02, 0.02), FAILS),
        ((-0.02, -0.02, -0.02), FAILS),
        ((0.02, 0.02, -0.02), UNKNOWN),  # noise around zero
        ((0.0, 0.02, 0.01), UNKNOWN),
        ((0.0, 0.0), UNKNOWN),
        ((0.3,), UNKNOWN),
    ],
)
def test_the_last_points_of_three_seeds_decide_whether_a_hybrid_learns_as_much(apart, verdict):
    learning = pd.DataFrame(
        {"model": "net", "way": way, "seed": seed, "step": step, "train_accuracy": 0.5 + 0.1 * seed + more}
        for seed, end in enumerate(apart)
        for step, last in ((10, 0.3), (20, end))
        for way, more in (("data-parallel", 0.0), ("hybrid", last))
    )
    assert verdicts(hybrid(hybrids(net_4=0.5), learning), "Its accuracy") == [verdict]


POINTS = pd.DataFrame(
    {"seed": seed, "sparse_steps": kind, "step": step, "train_steps": 9, "epoch": 1.0, "test_accuracy": accuracy}
    | {"train_loss": 1.0, "run": f"{kind}-{seed}"}
    for seed in range(3)
    for step in (4, 9)
    for kind, accuracy in ((0, 0.2), (3, 0.5 + 0.01 * seed), (10**9, 0.3 if step == 9 else 0.9))
)


def test_what_is_only_predicted_is_no_measurement_but_a_part_of_the_reason():
    table = hybrids(net_4=0.5)
    only = table.assign(workers=8, repeats=0, sender=NO, iteration_s=NO)
    only["predicted_s"] = only["way"].map({"hybrid": 2.0, "ring": 1.5, "served": 9.0})
    rows, alone = list(hybrid(pd.concat([table, only]), LEARNING)), list(hybrid(table, LEARNING))
    assert [row | {"why": ""} for row in rows] == [row | {"why": ""} for row in alone]
    faster = next(row for row in rows if row["statement"].startswith("It trains faster"))
    assert faster["verdict"] == HOLDS
    words = "; the time model predicts 0.75 for 8 workers on dedicated nodes"
    assert faster["why"].endswith(words)
    timed = pd.concat([hybrids(net_4=0.5, net_6=0.5), only])
    (decays,) = (row for row in hybrid(timed, LEARNING) if row["statement"].startswith("Its speed-up decays"))
    assert decays["why"].endswith(words)
    without = hybrids(net_8=0.5)
    assert list(hybrid(pd.concat([table, without[without["way"] != "ring"]]), LEARNING)) == list(
        hybrid(table, LEARNING)
    )


def test_accuracies_at_equal_bytes_are_compared_seed_by_seed():
    assert verdicts(alternating(POINTS), "Dense steps") == [HOLDS]
    assert verdicts(alternating(POINTS[POINTS["seed"] == 0]), "Dense steps") == [UNKNOWN]


def test_a_run_that_ends_at_chance_has_not_tested_its_method():
    assert not list(alternating(POINTS[POINTS["sparse_steps"] < 10**9]))  # there is nothing to compare with
    untrained = POINTS.assign(test_accuracy=POINTS["test_accuracy"].where(POINTS["sparse_steps"] != 3, 0.1))
    assert verdicts(alternating(untrained), "Dense steps") == [UNKNOWN]


def test_each_t_counts_with_the_learning_rate_of_its_lowest_training_loss():
    """At 0.1, T = 3 has the higher test accuracy and the higher loss; never dense is best at 0.1."""
    slow = POINTS.assign(lr=0.01, equal="steps", test_accuracy=0.2)
    fast = POINTS.assign(lr=0.1, equal="steps", train_loss=POINTS["sparse_steps"].map({0: 0.5, 3: 2.0, 10**9: 0.5}))
    both = pd.concat([slow, fast])
    best = at_best_rate(both).groupby("sparse_steps")["lr"].unique().map(list)
    assert best.to_dict() == {0: [0.1], 3: [0.01], 10**9: [0.1]}
    rows = list(alternating(pd.concat([both, POINTS.assign(lr=0.01, equal="bytes")])))
    found = {row["statement"].rpartition(" ")[2]: row["verdict"] for row in rows}
    assert found == {"bytes)": HOLDS, "steps)": FAILS}


def test_a_line_for_each_statement_and_verdict():
    table = compare(sums(s1x1=1.0, s4x4=3.0), TRAINING, LAYERS, POINTS, hybrids(net_2=0.5), LEARNING)
    lines = shown(table)
    assert len(lines) == len(table.groupby(["system", "statement", "verdict"]))
    assert (
        lines["Measured"]
        .str.contains("shared aggregators, against a ring, bound 15.0: 3 [2.73, 3.30], n = 5", regex=False)
        .any()
    )
    assert not lines["Measured"].str.contains("nan").any() and set(table["verdict"]) >= {HOLDS, UNTESTED}
    without = compare(sums(s4x4=3.0), TRAINING, LAYERS, POINTS)
    assert not without["statement"].str.contains("The gain is larger").any()
    last = compare(sums(s4x4=3.0), TRAINING, LAYERS).iloc[-1]
    assert last["verdict"] == UNTESTED and last["statement"].startswith("Dense steps")
