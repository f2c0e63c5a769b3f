"""The paper's statements held against tidy tables made by hand: every verdict of every statement is reached."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from dlgs_bench import plugins
from dlgs_bench.paper import claims
from dlgs_bench.paper.claims import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Merging,
    Timing,
    compare,
    compare_statements,
    judge,
    overall,
    shown,
)
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import Repeats, dense_seconds, speedups
from dlgs_bench.stats import Estimate, repeatable, unpaired

pytestmark = pytest.mark.unit

NOISE = np.array([0.99, 1.0, 1.01])
NAMES = Names({"none": "uncompressed", "topk": "Top-K", "lags": "LAGS", "dlgs": "DLGS"}, {"vgg16": "VGG16"})
FASTER = {"none": 4.0, "topk": 3.0, "lags": 2.0, "dlgs": 1.0}  # seconds of an iteration, in the paper's order
PARTS = {"forward_s": 0.1, "backward_s": 0.2, "sparsify_s": 0.1, "communication_s": 0.6, "sent_bytes": 1e6}


def timing_run(method: str, seconds, ratio=0.01, model="vgg16", topology="allgather", dense=4.0, **parts):
    """One run: ``seconds`` of the method, a number or one per block, timed together with ``dense`` of uncompressed."""
    seconds = seconds * NOISE if np.isscalar(seconds) else np.array(seconds)
    metadata = {"run": f"{model}-{method}-{ratio}-{topology}", "model": model, "variant": method, "topology": topology}
    metadata |= {"ratio": float("nan") if method == "none" else ratio, "phase": "step", "share": 1.0, "disturbed": None}
    metadata |= {"batch": claims.PAPERS_BATCH[model], "num_buckets": 4, "workers": 2}
    rows = []
    for block, (own, drift) in enumerate(zip(seconds, seconds / np.mean(seconds), strict=True)):
        if method != "none":
            rows.append({"timed": method, "block": block, "iteration_s": own} | PARTS | parts)
        rows.append(
            {"timed": "none", "block": block, "iteration_s": dense} | PARTS | (parts if method == "none" else {})
        )
        rows[-1]["communication_s"] *= drift
    return pd.DataFrame([metadata | row for row in rows])


def timing(**seconds) -> pd.DataFrame:
    """The runs of one cell in the paper's order, except for the given seconds."""
    return pd.concat(timing_run(method, s) for method, s in (FASTER | seconds).items() if s is not None)


def accuracy_runs(model="vgg16", epochs=140, train_epochs=140, seeds=3, curve=None, **accuracies) -> pd.DataFrame:
    """Curves of every method and seed. ``accuracies``: at the end; ``curve``: epoch -> training accuracy before."""
    accuracies = {"none": 0.95, "topk": 0.90, "lags": 0.91, "dlgs": 0.93} | accuracies
    rows = []
    for method, accuracy in accuracies.items():
        for seed in range(seeds if accuracy is not None else 0):
            points = (curve or {40: 0.8, 79: 0.82, 85: 0.92}) | {140: accuracy + 0.001 * seed}
            rows += [
                {"run": f"{model}-{method}-{seed}", "model": model, "variant": method, "seed": seed, "step": epoch,
                 "ratio": float("nan") if method == "none" else 0.1, "density": 0.1,
                 "epochs": epochs, "train_epochs": train_epochs, "precision": "float32",
                 "epoch": epoch * train_epochs / 140, "train_accuracy": value, "disturbed": None,
                 "train_loss": (1 - value) * 3, "data_title": "CIFAR-10", "stand_in": False}
                for epoch, value in points.items()
            ]  # fmt: skip
    return pd.DataFrame(rows)


def comparisons_of(statement: str, timed=None, learnt=None) -> pd.DataFrame:
    """The comparisons of the statement that begins with these words."""
    (words,) = (words for words in claims.TIMED | claims.LEARNT if words.startswith(statement))
    if words in claims.TIMED:
        rows = compare_statements({words: claims.TIMED[words]}, Timing(timing() if timed is None else timed))
    else:
        rows = compare_statements({words: claims.LEARNT[words]}, accuracy_runs() if learnt is None else learnt)
    assert rows
    return pd.DataFrame(rows)


def verdicts(statement: str, timed=None, learnt=None) -> set[str]:
    """The verdicts of the statement that begins with these words."""
    return set(comparisons_of(statement, timed, learnt)["verdict"])


def quotient(values, others) -> Estimate:
    return unpaired(repeatable(values), repeatable(others))


seconds = st.lists(st.floats(1e-2, 1e2), min_size=3, max_size=12)


@examples(0.6)
@given(seconds, seconds)
def test_a_quotient_is_known_less_well_than_either_and_turned_round_with_its_sides(values, others):
    found, turned = quotient(values, others), quotient(others, values)
    assert found.value == pytest.approx(repeatable(values).value / repeatable(others).value)
    assert found.low <= found.value * (1 + 1e-9) and found.value <= found.high * (1 + 1e-9)
    assert [1 / turned.value, 1 / turned.high] == pytest.approx([found.value, found.low])
    assert quotient(values, [0.3] * 4).width == pytest.approx(repeatable(values).width)
    assert quotient(values, [0.3]).width == float("inf")


def test_two_runs_of_the_same_differ_in_few_intervals():
    numbers = np.random.default_rng(1)
    pairs = (np.exp(0.1 * numbers.standard_normal((2, 3))) for _ in range(400))
    apart = [found for found in (quotient(*pair) for pair in pairs) if not found.low <= 1 <= found.high]
    assert len(apart) <= 0.05 * 400


def test_the_interval_decides():
    assert judge(Estimate(1.2, 1.1, 1.3))[0] == HOLDS
    assert judge(Estimate(0.8, 0.7, 0.9))[0] == FAILS
    assert judge(Estimate(1.2, 0.9, 1.3))[0] == UNKNOWN
    assert judge(Estimate(1.2, 1.0, 1.3))[0] == UNKNOWN  # a repeat may be exactly as fast
    assert judge(Estimate(1.2, math.nan, math.nan)) == (UNKNOWN, "n is below 3")
    assert judge(Estimate(1.2, 1.1, 1.3), bound=1.25)[0] == UNKNOWN


ORDER = [
    ("Top-K trains faster", "topk", "none"),
    ("LAGS trains faster", "lags", "topk"),
    ("DLGS trains", "dlgs", "lags"),
]


@pytest.mark.parametrize("statement, one, other", ORDER)
def test_the_order_of_the_methods(statement, one, other):
    assert verdicts(statement) == {HOLDS}
    assert verdicts(statement, timing(**{one: 2 * FASTER[other]})) == {FAILS}
    wide = [0.5 * FASTER[other], FASTER[other], 2 * FASTER[other]]
    assert verdicts(statement, timing(**{one: wide})) == {UNKNOWN}
    assert verdicts(statement, timing(**{one: [FASTER[one]] * 2})) == {UNKNOWN}  # two blocks
    assert verdicts(statement, timing(**{one: None})) == {UNKNOWN}
    disturbed = timing()
    disturbed.loc[disturbed["variant"] == one, "disturbed"] = "other work"
    assert verdicts(statement, disturbed) == {UNKNOWN}


def test_a_machine_that_drifts_between_two_runs_changes_no_verdict():
    """LAGS is slower than Top-K on the clock, but uncompressed was slower in the same run, too."""
    slow = timing_run("lags", 10 * FASTER["lags"], dense=40.0)
    assert verdicts("LAGS trains faster", pd.concat([timing(lags=None), slow])) == {HOLDS}


def test_every_model_ratio_and_topology_is_a_cell_of_its_own():
    cells = [
        timing_run(method, seconds, ratio, topology=topology)
        for method, seconds in FASTER.items()
        for topology in ("allgather", "ps-weights")
        for ratio in ((0.1,) if method == "none" else (0.1, 0.01))
    ]
    order = comparisons_of("DLGS trains faster than LAGS", pd.concat(cells))
    assert set(zip(order["topology"], order["ratio"], strict=True)) == {
        ("allgather", 0.1), ("allgather", 0.01), ("ps-weights", 0.1), ("ps-weights", 0.01),
    }  # fmt: skip


def test_variants_under_other_names_are_none_of_the_papers_business():
    more = timing_run("dlgs-often", 100.0)
    pd.testing.assert_frame_equal(
        compare(pd.concat([timing(), more]), accuracy_runs()), compare(timing(), accuracy_runs())
    )


LARGEST = "At ratio 0.01 DLGS's largest speed-up reaches 1.99"


@pytest.mark.parametrize("seconds, verdict", [(1.0, HOLDS), (3.0, FAILS), ([1.0, 2.0, 4.0], UNKNOWN), (None, UNKNOWN)])
def test_the_papers_largest_speed_up(seconds, verdict):
    assert verdicts(LARGEST, timing(dlgs=seconds)) == {verdict}


def test_one_cell_that_reaches_the_largest_speed_up_is_enough_for_its_topology_alone():
    both = pd.concat([timing(dlgs=3.0), timing_run("dlgs", 1.0, model="resnet20")])
    assert verdicts(LARGEST, both) == {HOLDS}
    served = pd.concat([timing(), timing_run("dlgs", 3.0, topology="ps-weights")])
    rows = comparisons_of(LARGEST, served).set_index("topology")["verdict"]
    assert rows.to_dict() == {"allgather": HOLDS, "ps-weights": FAILS}


def test_a_larger_speed_up_at_another_batch_does_not_hide_one_at_the_papers():
    small = pd.concat([timing(dlgs=0.5), timing_run("dlgs", 0.5, model="resnet50")]).assign(model="resnet50", batch=8)
    rows = comparisons_of(LARGEST, pd.concat([timing(), small[small["variant"] == "dlgs"]]))
    assert rows[["model", "verdict"]].to_numpy().tolist() == [["vgg16", HOLDS]]


def test_a_disturbed_cell_may_have_the_largest_speed_up():
    disturbed = timing_run("dlgs", 1.0, model="resnet20").assign(disturbed="other work")
    assert verdicts(LARGEST, pd.concat([timing(dlgs=3.0), disturbed])) == {UNKNOWN}
    assert verdicts(LARGEST, pd.concat([timing(dlgs=1.0), disturbed])) == {HOLDS}


def test_no_verdict_depends_on_a_batch_that_is_not_the_papers():
    small = timing(topk=8.0).assign(model="resnet50", batch=8)
    found = pd.DataFrame(compare_statements(claims.TIMED, Timing(small)))
    rows = found[(found["model"] == "resnet50") & found["value"].notna()]
    assert len(rows) >= 8 and set(rows["verdict"]) == {UNKNOWN}
    assert "timed at batch 8, the paper's is 64" in set(rows["why"])
    at_64 = pd.DataFrame(compare_statements(claims.TIMED, Timing(small.assign(batch=64))))
    assert {HOLDS, FAILS} <= set(at_64[at_64["model"] == "resnet50"]["verdict"])


def test_a_verdict_on_two_models_needs_the_papers_batch_of_both():
    words = "DLGS gains little on VGG16 because"
    other = timing_run("dlgs", 1.0, model="resnet50").assign(num_buckets=30)
    both = pd.concat([timing().assign(num_buckets=5), other])
    assert verdicts(words, both) == {HOLDS}
    small = pd.concat([timing().assign(num_buckets=5), other.assign(batch=32)])
    (row,) = comparisons_of(words, small).to_dict("records")
    assert (row["model"], row["verdict"]) == ("vgg16", UNKNOWN)
    assert row["why"] == "resnet50 was timed at batch 32, the paper's is 64"
    assert "VGG16, batch 32, against resnet50, ratio 0.01: 0." in shown(comparisons_of(words, small), NAMES).to_string()


def test_dlgs_is_the_fastest_only_if_it_beats_every_method_and_uncompressed_the_slowest_only_if_all_do():
    least, most = "DLGS takes the least time", "Uncompressed takes the most time"
    assert verdicts(least) == verdicts(most) == {HOLDS}
    assert verdicts(least, timing(topk=0.5)) == {FAILS} and verdicts(most, timing(lags=8.0)) == {FAILS}
    assert verdicts(least, timing(dlgs=[1.0, 2.0, 4.0])) == verdicts(least, timing(dlgs=None)) == {UNKNOWN}


def test_thresholds_that_are_reused_save_selection_and_topk_saves_communication():
    reused = "Reused thresholds shorten"
    slow, quick = (timing_run("dlgs", 1.0, sparsify_s=seconds * NOISE.mean()) for seconds in (0.3, 0.01))
    assert verdicts(reused, pd.concat([timing(dlgs=None), quick])) == {HOLDS}
    assert verdicts(reused, pd.concat([timing(dlgs=None), slow])) == {FAILS}
    for waits, verdict in ((0.1, HOLDS), (2.0, FAILS)):
        topk = timing_run("topk", 3.0, communication_s=waits)
        assert verdicts("Top-K shortens", pd.concat([timing(topk=None), topk])) == {verdict}


def test_accuracy_close_to_uncompressed_needs_three_seeds():
    words = "The training accuracy is very close"
    assert verdicts(words, learnt=accuracy_runs(topk=0.949, lags=0.949, dlgs=0.945)) == {HOLDS}
    assert verdicts(words) == {FAILS}
    assert verdicts(words, learnt=accuracy_runs(seeds=2)) == {UNKNOWN}
    assert verdicts(words, learnt=accuracy_runs(train_epochs=0.4)) == {UNKNOWN}


@pytest.mark.parametrize("density, verdict", [(0.1, HOLDS), (0.19, HOLDS), (0.21, FAILS), (0.02, FAILS)])
def test_a_threshold_that_is_reused_sends_about_the_ratio(density, verdict):
    words, learnt = "Thresholds change little", accuracy_runs()
    learnt["epoch"] = learnt["epoch"].map({40: 1.0, 79: 2.0, 85: 3.0, 140: 4.0})
    learnt["step"] = 40 * learnt["epoch"]
    learnt.loc[(learnt["variant"] == "dlgs") & (learnt["epoch"] == 2), "density"] = density
    assert verdicts(words, learnt=learnt) == {verdict}
    assert verdicts(words, learnt=learnt.assign(step=learnt["step"] / 2)) == {UNKNOWN}  # a short training
    assert verdicts(words, learnt=learnt.assign(epoch=2 * learnt["epoch"])) == {UNKNOWN}  # a point every two epochs
    halves = [learnt.assign(epoch=learnt["epoch"] - 0.5, step=learnt["step"] - 20, density=2.5 * learnt["density"])]
    halves += [learnt.assign(density=-0.5 * learnt["density"])]  # equal means over the epoch
    assert verdicts(words, learnt=pd.concat(halves)) == {verdict}


@pytest.mark.parametrize("dlgs, verdict", [(1.95, HOLDS), (1.0, FAILS), ([1.0, 2.0, 4.0], UNKNOWN)])
def test_little_is_gained_on_vgg16(dlgs, verdict):
    assert verdicts("On VGG16 DLGS gains little", timing(topk=2.0, dlgs=dlgs)) == {verdict}


def test_communication_is_longer_than_computation_only_if_what_backward_hides_cannot_matter():
    def of(communication_s):
        return verdicts("Uncompressed communication", timing_run("none", 4.0, communication_s=communication_s))

    assert of(0.6) == {HOLDS}  # computation takes 0.3, of which 0.2 may hide some
    assert of(0.2) == {UNKNOWN}
    assert of(0.05) == {FAILS}
    single = timing_run("none", 4.0, communication_s=0.2).assign(num_buckets=1)
    assert verdicts("Uncompressed communication", single) == {FAILS}  # backward hides nothing of a single bucket


@pytest.mark.parametrize("lags, verdict", [(0.2, HOLDS), (0.02, FAILS), (0.1, UNKNOWN), (0.0, UNKNOWN)])
def test_lags_sparsifies_longer(lags, verdict):
    topk = timing_run("topk", 3.0, sparsify_s=0.1)
    topk.loc[topk["timed"] == "topk", "sparsify_s"] *= NOISE
    timed = pd.concat([timing_run("none", 4.0), topk, timing_run("lags", 2.0, sparsify_s=lags)])
    assert verdicts("LAGS sparsifies longer", timed) == {verdict}


def test_accuracy_second_to_uncompressed():
    assert verdicts("DLGS's training accuracy") == {HOLDS}
    assert verdicts("DLGS's training accuracy", learnt=accuracy_runs(dlgs=0.96)) == {HOLDS, FAILS}
    assert verdicts("DLGS's training accuracy", learnt=accuracy_runs(seeds=2)) == {UNKNOWN}
    assert verdicts("DLGS's training accuracy", learnt=accuracy_runs(dlgs=None)) == {UNKNOWN}
    short = accuracy_runs(train_epochs=0.4)
    assert verdicts("DLGS's training accuracy", learnt=short) == {UNKNOWN}
    found = comparisons_of("DLGS's training accuracy", learnt=short)
    assert "0.4 of 140 epochs" in shown(found, NAMES).to_string()


def test_accuracy_settles_and_jumps():
    words = "Accuracy settles near epoch 40"
    assert verdicts(words) == {HOLDS}
    assert verdicts(words, learnt=accuracy_runs(train_epochs=35)) == {UNKNOWN}  # epochs of another schedule
    assert verdicts(words, learnt=accuracy_runs(seeds=2)) == {UNKNOWN}  # four methods are not four repeats
    steady = {40: 0.8, 79: 0.9, 85: 0.91}
    assert verdicts(words, learnt=accuracy_runs(curve=steady)) == {FAILS}
    assert verdicts(words, learnt=accuracy_runs(curve={40: 0.8, 60: 0.9})) == {UNKNOWN}
    assert verdicts(words, learnt=accuracy_runs(train_epochs=0.4)) == {UNKNOWN}
    of_80 = pd.concat([accuracy_runs(), accuracy_runs("resnet50", epochs=80, train_epochs=80)])
    found = comparisons_of(words, learnt=of_80)
    assert set(found["model"]) == {"vgg16"}


def test_a_kept_run_replaces_a_training_that_was_too_short():
    short = pd.concat([accuracy_runs(train_epochs=0.4), accuracy_runs("resnet50", train_epochs=0.4)])
    long = pd.concat([accuracy_runs(), accuracy_runs("resnet20")])
    compared = compare(timing(), short)
    assert claims.with_kept(compared, [], ["vgg16"]) is compared
    both = claims.with_kept(compared, [long, long], ["vgg16", "resnet50"])
    timed = [list(table.loc[table["statement"].isin(claims.TIMED), "value"].dropna()) for table in (compared, both)]
    assert timed[0] == timed[1] != []
    accuracy = both[both["statement"].str.startswith("DLGS's training accuracy")].set_index("model")
    assert accuracy.loc["resnet50", "why"] == claims.SHORT  # no run of it is kept
    assert set(accuracy.loc["vgg16", "verdict"]) == {HOLDS} and set(accuracy.index) == {"vgg16", "resnet50"}
    assert list(accuracy.loc["vgg16", "which"]) == [
        f"kept run: {pair}" for pair in ("dlgs divided by lags", "dlgs divided by topk", "none divided by dlgs")
    ]
    assert "VGG16, kept run: uncompressed divided by DLGS, ratio 0.1: 1.02" in shown(both, NAMES).to_string()


def test_one_row_shows_all_that_led_to_one_verdict_for_one_reason():
    table = shown(compare(timing(lags=6.0), accuracy_runs()), NAMES)
    place = table.index[table["The paper states"] == "LAGS trains faster than Top-K"][0]
    assert table.loc[place, "Verdict"] == FAILS and not table.loc[place, "Measured"]
    row = table.loc[place + 1]
    assert (
        row["Verdict"] == FAILS
        and "VGG16, batch 32, ratio 0.01: 0.50 [0." in row["Measured"]
        and "n = 3" in row["Measured"]
    )
    missing = shown(compare(timing(dlgs=None), accuracy_runs()), NAMES)
    assert "no run of DLGS" in set(missing["Why"])
    assert set(claims.TIMED) | set(claims.LEARNT) == set(missing["The paper states"]) - {""}


def test_one_line_sums_up_the_verdicts_of_a_statement():
    assert overall(pd.Series([HOLDS] * 3)) == HOLDS
    assert overall(pd.Series([HOLDS, FAILS, HOLDS, UNKNOWN])) == (
        "mixed: holds in 2 of 4, does not hold in 1, cannot be told here in 1"
    )


def planners(ratio=0.1, **seconds) -> pd.DataFrame:
    """The tidy table of a run of planners: seconds of an iteration under each plan."""
    metadata = {"run": "r", "model": "vgg16", "variant": "dlgs", "topology": "allgather", "ratio": ratio, "batch": 32}
    metadata["workers"] = 2
    return pd.DataFrame(
        metadata
        | {
            "disturbed": None,
            "planner": name,
            "block": block,
            "iteration_s": own * noise,
            "phase": "step",
            "share": 1.0,
        }
        for name, own in seconds.items()
        for block, noise in enumerate(NOISE)
    )


@pytest.mark.parametrize("layer, paper, exact, expected", [
    (2.0, 1.0, 1.0, (HOLDS, HOLDS)), (1.0, 2.0, 1.0, (FAILS, FAILS)), (1.0, 1.0, 0.95, (UNKNOWN, UNKNOWN)),
])  # fmt: skip
def test_merging_pays_and_algorithm_2_is_optimal_if_measured_plans_say_so(layer, paper, exact, expected):
    noisy = planners(layer=layer, paper=paper, exact=exact)
    if expected[0] == UNKNOWN:
        noisy.loc[noisy["planner"] == "paper", "iteration_s"] *= np.array([0.7, 1.0, 1.4])

    def verdicts_on(table: pd.DataFrame) -> tuple[str, ...]:
        return tuple(row["verdict"] for row in compare_statements(claims.MERGED, Merging(table)))

    assert verdicts_on(noisy) == expected
    assert set(verdicts_on(noisy.assign(model="resnet50", batch=8))) == {UNKNOWN}
    assert set(verdicts_on(noisy[noisy["block"] < 2])) == {UNKNOWN}


def test_a_difference_between_plans_within_the_differences_between_launches_decides_nothing():
    """Many blocks of three launches are not as many independent measurements."""
    launches = [
        planners(layer=factor, paper=1.0, exact=1.0).assign(
            launch=number, block=lambda t, n=number: t["block"] + 99 * n
        )
        for number, factor in enumerate((1.3, 1.2, 0.95))
    ]
    many = pd.concat([one.assign(block=one["block"] + 10 * n) for one in launches for n in range(9)])
    words = next(iter(claims.MERGED))
    for table, verdict in ((many, UNKNOWN), (many.drop(columns="launch"), HOLDS)):
        (row,) = compare_statements({words: claims.MERGED[words]}, Merging(table))
        assert (row["verdict"], row["n"]) == (verdict, 81)


def test_a_plan_that_was_timed_with_more_workers_than_usual_is_said_to_be():
    more = planners(layer=2.0, paper=1.0, exact=1.0).assign(workers=3, run="s")
    for words in claims.MERGED:
        rows = compare_statements(
            {words: claims.MERGED[words]}, Merging(pd.concat([planners(layer=2.0, paper=1.0, exact=1.0), more]))
        )
        assert [row["workers"] for row in rows] == [0, 3]


def test_statements_about_plans_are_about_dlgs_and_not_about_other_variants_of_it():
    own, other = planners(layer=2.0, paper=1.0, exact=1.0), planners(layer=1.0, paper=2.0, exact=1.0)
    both = pd.concat([own, other.assign(variant="mine", run="s")])
    expected = compare_statements(claims.MERGED, Merging(own))
    assert compare_statements(claims.MERGED, Merging(both)) == expected and len(expected) == 2
    assert {row["verdict"] for row in compare_statements(claims.MERGED, Merging(both[both["variant"] == "mine"]))} == {
        UNKNOWN
    }


def launched(method: str, seconds: float, factors=(1.0, 1.2, 0.9)) -> pd.DataFrame:
    """A run of three launches, of which each is slower by a factor."""
    launches = [timing_run(method, seconds).assign(launch=number) for number in range(len(factors))]
    return pd.concat(
        one.assign(iteration_s=one["iteration_s"] * f) for one, f in zip(launches, factors, strict=True)
    ).assign(timed_in="one")  # fmt: skip


def test_uncompressed_is_measured_once_however_many_methods_took_turns_with_it():
    alone = launched("dlgs", 1.0)
    together = pd.concat([alone, *(launched(f"method{n}", 1.0 + n) for n in range(6))])
    one, other = (Repeats(table).estimate(alone, dense_seconds) for table in (alone, together))
    assert one == other and one.low < one.value < one.high


def test_each_table_brings_its_statements_and_no_other():
    table = compare(None, accuracy_runs(), planners(layer=1.0, paper=1.0, exact=1.0))
    assert set(table["statement"]) == set(claims.MERGED) | set(claims.LEARNT)


@pytest.mark.parametrize("buckets, verdict", [(5, HOLDS), (40, FAILS)])
def test_vgg16_is_merged_more_only_if_its_plan_has_fewer_buckets_per_layer(buckets, verdict):
    words = "DLGS gains little on VGG16 because"
    other = timing_run("dlgs", 1.0, model="resnet20").assign(num_buckets=30)
    both = pd.concat([timing().assign(num_buckets=buckets), other])
    assert verdicts(words, both) == {verdict} and verdicts(words) == {UNKNOWN}
    sizes = {name: len(plugins.describe("models", name)["layers"]) for name in ("vgg16", "resnet20")}
    per_layer = both.assign(num_buckets=both["model"].map(sizes))
    assert verdicts(words, per_layer) == {UNKNOWN}  # a planner that merges nothing
    assert verdicts(words, both.assign(num_buckets=1)) == {UNKNOWN}  # a planner that merges all


def test_overlap_and_compression_are_read_off_what_is_waited_for_and_sent():
    for waits, verdict in ((0.1, HOLDS), (2.0, FAILS)):
        lags = timing_run("lags", 2.0, communication_s=waits)
        assert verdicts("LAGS hides communication", pd.concat([timing(lags=None), lags])) == {verdict}
    for sent, verdict in ((0.5e6, HOLDS), (1e6, FAILS)):
        dlgs = timing_run("dlgs", 1.0, sent_bytes=sent)
        assert verdicts("DLGS compresses markedly", pd.concat([timing(dlgs=None), dlgs])) == {verdict}


@pytest.mark.parametrize("method, words", [("lags", "LAGS hides communication"), ("topk", "Top-K shortens")])
def test_a_wait_that_a_clock_cannot_show_is_a_bound_of_the_quotient(method, words):
    """Blocks of one run of the reference set waited 0 to 14 ms, with medians of launches from 0.35 to 1.8 ms."""

    def waited(*seconds: float, others: tuple = ()) -> dict:
        runs = pd.concat([timing_run(method, FASTER[method]), timing(**{method: None})], ignore_index=True)
        own = runs["timed"] == method
        if others:
            runs["communication_s"] = runs["block"].map(dict(enumerate(others)))
        runs.loc[own, "communication_s"] = runs.loc[own, "block"].map(dict(enumerate(seconds)))
        (row,) = comparisons_of(words, runs).to_dict("records")
        return row

    clear = waited(0.0, 0.0009, 0.014)
    assert clear["verdict"] == HOLDS and "did not wait" in clear["why"] and "bound" in clear["why"]
    assert clear["value"] == pytest.approx(waited(0.001, 0.001, 0.001)["value"], rel=0.1)
    assert waited(0.0, 0.0009, 0.014, others=(0.0011, 0.009, 0.0012))["verdict"] == UNKNOWN
    neither = waited(0.0, 0.0009, 0.014, others=(0.0005, 0.0005, 0.0005))
    assert neither["verdict"] == UNKNOWN and pd.isna(neither["value"]) and "did not wait" in neither["why"]
    assert waited(0.0, 0.0011, 0.014)["high"] < 1e6  # one block without a wait


def test_a_method_that_waits_where_the_other_does_not_fails_the_statement():
    run = timing_run("topk", FASTER["topk"])
    run.loc[run["timed"] == "topk", "communication_s"] = 1e-5
    (row,) = comparisons_of("LAGS hides communication", pd.concat([timing(topk=None), run])).to_dict("records")
    assert row["verdict"] == FAILS and row["high"] < 0.1


def test_a_run_that_did_not_wait_widens_no_interval_of_the_others():
    others = timing(dlgs=None)
    idle = timing_run("dlgs", 1.0)
    idle.loc[idle["timed"] == "dlgs", "communication_s"] = 1e-7
    launched = [pd.concat([others, idle]).assign(launch=launch) for launch in (1, 2, 3)]
    for launch, rows in enumerate(launched):
        rows.loc[rows["timed"] == "topk", "communication_s"] *= NOISE[launch]
    every = pd.concat(launched)
    found = [comparisons_of("LAGS hides communication", rows) for rows in (every, every[every["variant"] != "dlgs"])]
    assert found[0]["high"].tolist() == pytest.approx(found[1]["high"].tolist()) and found[0]["high"].notna().all()


def test_a_speed_up_has_one_interval_in_table_2_and_in_the_claims():
    """Other methods in the same launches, here 16 bits, count for the spread in both."""
    methods = {"none": 4.0, "topk": 3.0, "lags": 2.0, "dlgs": 1.0, "cast": 2.5}
    runs = pd.concat(timing_run(method, s).assign(launch=n) for method, s in methods.items() for n in (1, 2, 3))
    runs["iteration_s"] *= 1 + 0.1 * np.random.default_rng(0).standard_normal(len(runs))
    repeats, topk = Repeats(runs), runs[runs["variant"] == "topk"]
    (row,) = comparisons_of("Top-K trains faster", runs).to_dict("records")
    estimate = repeats.estimate(topk, speedups)
    assert (row["value"], row["low"], row["high"]) == (estimate.value, estimate.low, estimate.high)


def test_losses_close_to_uncompressed_need_three_seeds():
    words = "The training loss is very close"
    close = {"none": 0.9, "topk": 0.9, "lags": 0.901, "dlgs": 0.9}
    assert verdicts(words, learnt=accuracy_runs(**close)) == {HOLDS}
    assert verdicts(words) == {FAILS}
    assert verdicts(words, learnt=accuracy_runs(seeds=2, **close)) == {UNKNOWN}
    assert verdicts(words, learnt=accuracy_runs(train_epochs=0.4)) == {UNKNOWN}
    assert verdicts(words, learnt=accuracy_runs(none=None)) == {UNKNOWN}


@pytest.mark.parametrize(
    "lags, verdict",
    [
        ((0.399, 0.399, 0.399), HOLDS),
        ((0.32, 0.32, 0.32), FAILS),
        ((0.48, 0.48, 0.48), FAILS),
        ((0.43, 0.37, 0.40), UNKNOWN),  # noise around the others
        ((0.32,), UNKNOWN),
    ],
)
def test_compressors_differ_little_after_one_epoch(lags, verdict):
    learnt = accuracy_runs(seeds=len(lags), curve={1: 0.4, 2: 0.5})
    early = (learnt["variant"] == "lags") & (learnt["epoch"] == 1)
    learnt.loc[early, "train_accuracy"] = learnt["seed"].map(dict(enumerate(lags)))
    found = comparisons_of("At the start all compressors", learnt=learnt).set_index("which")["verdict"]
    alike = found.pop("dlgs minus topk")
    assert set(found) == {verdict} and len(found) == 2
    assert alike == (HOLDS if len(lags) > 1 else UNKNOWN)
    assert verdicts("At the start all compressors", learnt=learnt[learnt["variant"] != "lags"]) == {UNKNOWN}
    assert verdicts("At the start all compressors") == {UNKNOWN}  # no point before epoch 40


def test_the_loss_settles_and_falls():
    words = "The loss settles near epoch 40"
    assert verdicts(words) == {HOLDS}
    assert verdicts(words, learnt=accuracy_runs(curve={40: 0.8, 79: 0.9, 85: 0.91})) == {FAILS}
    assert verdicts(words, learnt=accuracy_runs(train_epochs=35)) == {UNKNOWN}


def test_another_number_of_workers_is_a_cell_of_its_own_and_said():
    three = pd.concat(timing_run(method, s).assign(workers=3) for method, s in (FASTER | {"dlgs": 3.0}).items())
    three["run"] += "-3workers"
    found = comparisons_of("DLGS trains faster than LAGS", pd.concat([timing(), three]))
    rows = found.set_index("workers")["verdict"]
    assert rows.to_dict() == {0: HOLDS, 3: FAILS}
    assert "VGG16, batch 32, 3 workers, ratio 0.01: 0.67" in shown(found, NAMES).to_string()


@pytest.mark.parametrize("lags, seeds, verdict", [(0.91, 3, HOLDS), (0.85, 3, FAILS), (0.91, 2, UNKNOWN)])
def test_resnet50_behaves_as_the_others_if_methods_are_as_far_from_uncompressed(lags, seeds, verdict):
    words = "ResNet-50 behaves as"
    both = pd.concat([accuracy_runs(seeds=seeds), accuracy_runs("resnet50", seeds=seeds, lags=lags)])
    compared = comparisons_of(words, learnt=both).set_index("which")
    assert compared.loc["lags against vgg16", "verdict"] == verdict
    assert set(compared["verdict"]) <= {verdict, HOLDS} and len(compared) == 3
    assert "ResNet-50 was not trained" in set(comparisons_of(words)["why"])
    short = pd.concat([accuracy_runs(), accuracy_runs("resnet50", train_epochs=0.4)])
    assert set(comparisons_of(words, learnt=short)["why"]) == {claims.SHORT}


@pytest.mark.parametrize("density, high, misses", [(0.1, FAILS, FAILS), (0.02, HOLDS, HOLDS), (0.5, FAILS, HOLDS)])
def test_estimated_thresholds_are_judged_by_the_entries_they_send_at_the_end(density, high, misses):
    dlgs = accuracy_runs(none=None, topk=None, lags=None)
    for variant, words, verdict in (("gaussiank", "Gaussian-K's threshold", high), ("sidco", "SIDCo's", misses)):
        own = dlgs.assign(variant=variant, density=dlgs["density"].where(dlgs["epoch"] < 140, density))
        assert verdicts(words, learnt=pd.concat([accuracy_runs(), own])) == {verdict}
        assert set(comparisons_of(words)["why"]) == {f"no run of {variant}"}
        assert verdicts(words, learnt=own.assign(train_epochs=0.4)) == {UNKNOWN}


def test_a_statement_without_an_own_run_is_judged_by_a_kept_run():
    compared = compare(None, accuracy_runs())
    both = claims.with_kept(compared, [pd.concat([accuracy_runs(), accuracy_runs("resnet50")])], ["vgg16", "resnet50"])
    own = both[both["statement"].str.startswith("ResNet-50 behaves")]
    assert set(own["model"]) == {"resnet50"} and set(own["verdict"]) == {HOLDS}
