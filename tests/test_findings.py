"""The sentences of the findings: what the tables say, and nothing where tables say nothing."""

import pandas as pd
import pytest
from test_claims import FASTER, accuracy_runs, timing_run

from dlgs_bench.paper import claims, findings
from dlgs_bench.report.load_runs import ABOUT
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import MEASURED, summarise

pytestmark = pytest.mark.unit

NAMES = Names(
    {"none": "uncompressed", "topk": "Top-K", "lags": "LAGS", "dlgs": "DLGS"},
    {"vgg16": "VGG16", "resnet50": "ResNet-50"},
)


def whole(runs: pd.DataFrame, selection="torch", rate=100.0, workers=2) -> pd.DataFrame:
    """Made-up runs with every column that a summary asks for."""
    metadata = dict.fromkeys([key for key in ABOUT if key not in runs], float("nan"))
    metadata |= {"workers": workers, "batch": 32, "train_samples": 640, "rate_mbit": rate, "epochs": 140}
    metadata |= {"sent_bytes": 8, "received_bytes": 8, "density": 0.1}
    metadata |= dict.fromkeys([part for part in MEASURED if part not in runs], 0.0)
    sparse = runs["variant"] != "none"
    options = {"selection": sparse.map({True: selection}), "refresh_every": (runs["variant"] == "dlgs").map({True: 32})}
    return runs.assign(**metadata | options)


def cell(model="vgg16", topology="allgather", ratio=0.01, metadata=None, **seconds) -> pd.DataFrame:
    """The four methods in the paper's order, except for what is given."""
    runs = [timing_run(m, s, ratio, model, topology) for m, s in (FASTER | seconds).items()]
    return whole(pd.concat(runs), **metadata or {})


def said(timing: pd.DataFrame, **more) -> list[str]:
    return findings.sentences({"timing": timing, "accuracy": accuracy_runs()} | more, NAMES)


def gains(timing: pd.DataFrame) -> str:
    """The finding about gains and losses, in one line."""
    return " ".join(findings.pays({"timing": timing, "summary": summarise(timing)}, NAMES).splitlines())


def test_a_gain_is_said_with_all_that_it_depends_on():
    words = "ratio 0.01, batch 32, s = 32, links of 100 Mb/s, n = 3 blocks"
    first = gains(cell())
    assert said(cell())[:2] == findings.pays({"timing": cell(), "summary": summarise(cell())}, NAMES).splitlines()[:2]
    assert first.startswith("Compression pays on VGG16. DLGS makes an iteration of VGG16 4.00 [")
    assert f"times as fast ({words})." in first
    assert first.endswith("the fastest uncompressed of the same run, with selection torch and 2 workers.")
    first = gains(pd.concat([cell(), cell("resnet50", metadata={"workers": 4})]))
    assert "n = 3 blocks)" in first and "4 workers, n" in first and first.endswith("with selection torch.")
    assert "significantly" not in first


def test_a_gain_is_compared_with_16_bits():
    half = whole(timing_run("cast", 2.0)).assign(ratio=float("nan"), refresh_every=float("nan"))
    first = gains(pd.concat([cell(), half]))
    assert "). Its speed-up divided by the speed-up of cast: 2.00 [" in first and "cast makes" not in first


def test_a_gain_that_a_repeat_may_not_show_is_not_called_one():
    slow = {method: [2.0, 4.0, 8.0] for method in ("topk", "lags", "dlgs")}
    rows = cell("resnet50", **slow).assign(batch=64)
    first = gains(pd.concat([cell(), rows]))
    assert "Compression pays on VGG16." in first and "iteration of ResNet-50" not in first
    assert "On ResNet-50 no method is significantly faster over all-gather. The largest speed-up is 1.00 [" in first
    first = gains(pd.concat([cell(), cell("resnet50").assign(batch=32)]))
    assert "On ResNet-50 nothing is decided, because the paper's batch is 64. The largest" in first
    assert said(cell(**slow))[0].startswith("On VGG16 no method is significantly faster over all-gather")


def test_a_certain_loss_is_said():
    assert "cost time" not in gains(cell())
    first = gains(cell(lags=8.0))
    assert "Compression can also cost time: LAGS makes an iteration of VGG16 0.50 [" in first


def test_a_disturbed_run_and_one_of_two_blocks_say_nothing():
    one = cell()
    assert "DLGS" not in gains(one.assign(disturbed=one["variant"].map({"dlgs": "other work"})))
    first = said(cell(**{method: [1.0, 1.0] for method in FASTER}))[0]
    assert first.startswith("On VGG16 nothing is decided, because n is below 3. The largest speed-up is")


def test_more_workers_do_not_stand_in_for_disturbed_runs():
    """The answer judges the runs with the fewest workers, too, and has no verdict then."""
    few, more = cell().assign(disturbed="other work"), cell(metadata={"workers": 3})
    timing = pd.concat([few, more.assign(run=more["run"] + "-3")])
    assert "Compression pays" not in gains(timing)
    assert "Compression pays" in gains(timing.assign(disturbed=float("nan")))


def selections(fast: pd.DataFrame, slow: pd.DataFrame) -> list[str]:
    found = said(cell(), selections_timing=pd.concat([slow, fast]))
    return [sentence for sentence in found if "compiled passes" in sentence]


def test_what_selection_decides_needs_both_kinds():
    assert not any("compiled passes" in sentence for sentence in said(cell()))
    (sentence,) = selections(cell(topk=1.0, metadata={"selection": "compiled"}), cell())
    assert "3.00 [" in sentence.split("compiled")[0] and "1.00 [" in sentence.split("compiled")[1]
    assert "on VGG16 at ratio 0.01" in sentence and "the difference is not significant" in sentence
    assert "On VGG16, DLGS is significantly faster than Top-K only with the paper's slow selection." in sentence
    (sentence,) = selections(cell(metadata={"selection": "compiled"}), cell())
    assert "slow selection" not in sentence and sentence.count("3.00 [") == 2 and "significant" not in sentence
    assert not selections(*(one.assign(batch=1) for one in (cell(metadata={"selection": "compiled"}), cell())))
    (sentence,) = selections(cell(topk=1.0, metadata={"selection": "compiled"}), cell(topk=1.0))
    assert "No interval lies above 1, so DLGS is not significantly faster than Top-K." in sentence


def test_a_gain_that_one_ratio_keeps_with_compiled_passes_is_not_called_the_slow_selections():
    """The smallest ratio alone does not decide."""
    slow = pd.concat([cell(), cell(ratio=0.1)]).drop_duplicates(["run", "timed", "block"])
    quick = pd.concat([cell(topk=1.0), cell(ratio=0.1)]).drop_duplicates(["run", "timed", "block"])
    quick["selection"] = quick["selection"].replace("torch", "compiled")
    (sentence,) = selections(quick, slow)
    assert "ratio 0.1 and" in sentence and "slow selection" not in sentence


def test_what_uncompressed_waits_for_is_the_number_of_the_claim():
    """The claim's number is 0.6 s divided by 0.3 s. A mean over the middle half of the iterations would give 1.99."""
    (sentence,) = (s for s in said(cell()) if "waits for communication" in s)
    compared = claims.compare(cell(), accuracy_runs())
    (value,) = compared.loc[compared["statement"].str.startswith("Uncompressed communication"), "value"]
    assert value == pytest.approx(2) and f"in the median block: {value:.2f} s on VGG16." in sentence
    # the shortest computing is 0.3 of DLGS's second, uncompressed takes 4 s
    assert sentence.endswith("it would be 13.33 times as fast on VGG16. This is a bound, without an interval.")


def test_the_papers_order_is_counted():
    assert any("Of the 3 pairs" in s and "3 agree" in s and "0 contradict" in s for s in said(cell()))
    assert any("2 agree" in s and "1 contradict" in s for s in said(cell(lags=0.5)))
    # A pair counts only if both of its methods were timed.
    two = cell()[cell()["variant"].isin(["none", "topk"])]
    assert any("Of the 1 pairs" in s and "1 agree" in s and "0 are undecided" in s for s in said(two))


def test_the_ceiling_of_a_server_is_said_where_there_is_one():
    assert not any("server" in sentence for sentence in said(cell()))
    served = cell(topology="ps-weights", lags=3.0, dlgs=2.5, metadata={"workers": 3})
    (sentence,) = (s for s in said(pd.concat([cell(), served])) if "server" in s)
    assert "no speed-up can pass 2. VGG16, the only model timed so, is 1.60 [" in sentence
    assert "3 workers" in sentence
    few, other = (cell(m, topology="ps-weights", **{k: [1.0, 1.0] for k in FASTER}) for m in ("vgg16", "resnet50"))
    (sentence,) = (s for s in said(pd.concat([cell(), served, other])) if "server" in s)
    assert "VGG16, the model with the most significant gain, is 1.60 [" in sentence
    slow = cell("resnet50", topology="ps-weights", **{k: [1.0, 2.0, 3.0] for k in FASTER}).assign(batch=64)
    (sentence,) = (s for s in said(pd.concat([cell(), few, slow])) if "server" in s)
    assert "ResNet-50, the model with the largest speed-up, which is not significant, is" in sentence


def test_tables_of_another_configuration_say_nothing(tmp_path):
    """A folder of results keeps the tables of an earlier configuration that timed runs."""
    cell().to_csv(tmp_path / "timing.csv", index=False)
    accuracy_runs().to_csv(tmp_path / "accuracy.csv", index=False)
    assert any("Compression pays" in s for s in findings.write(tmp_path, NAMES, [], ["timing", "accuracy"]))
    assert not any("Compression pays" in s for s in findings.write(tmp_path, NAMES, [], ["accuracy", "rates"]))


def test_up_to_which_rate_dlgs_gains():
    over = [
        cell(dlgs=s, metadata={"rate": rate}).assign(run=str(rate))
        for rate, s in ((100.0, 1.0), (300.0, 3.0), (900.0, 5.0))
    ]
    timed = pd.concat(over)
    timed["run"] += timed["variant"]
    (sentence,) = (s for s in said(cell(), rates_timing=timed) if "gains over uncompressed" in s)
    assert "on VGG16 up to 300 Mb/s: 1.33 [" in sentence
    assert not [s for s in said(cell(), rates_timing=timed.assign(batch=1)) if "gains over uncompressed" in s]
    assert not [s for s in said(cell(), rates_timing=timed.assign(disturbed="other")) if "gains over unc" in s]
    slow = (timed["rate_mbit"] == 100) & (timed["timed"] == "dlgs")
    lost = timed.assign(iteration_s=timed["iteration_s"].where(~slow, timed["iteration_s"] * 10))
    (sentence,) = (s for s in said(cell(), rates_timing=lost) if "gains over uncompressed" in s)
    assert "on VGG16 over links of 300 Mb/s: 1.33 [" in sentence
    slower = timed[timed["rate_mbit"] < 900]  # no limit was seen
    (sentence,) = (s for s in said(cell(), rates_timing=slower) if "gains over uncompressed" in s)
    assert "on VGG16 up to 300 Mb/s, the fastest that was timed: 1.33 [" in sentence


def test_a_low_density_of_dlgs_is_said_with_what_the_methods_learnt():
    kept = accuracy_runs(train_epochs=2)
    kept["test_accuracy"] = kept["train_accuracy"]
    assert not any("sends little" in sentence for sentence in said(cell(), kept=kept))
    kept.loc[(kept["variant"] == "dlgs") & (kept["epoch"] > 1), "density"] = 0.02
    (sentence,) = (s for s in said(cell(), kept=kept) if "sends little" in s)
    assert sentence.startswith("On VGG16 at ratio 0.1, DLGS sends little")
    assert "it sent 0.20 times the requested" in sentence
    assert (
        "kept runs (2 of 140 epochs, means over seeds): uncompressed 95.1 %, Top-K 90.1 %, LAGS 91.1 % and DLGS 93.1 %."
        in sentence
    )
    assert not any("sends little" in sentence for sentence in said(cell(), kept=kept.assign(model="resnet20")))


def test_a_run_in_two_kept_tables_counts_once(tmp_path):
    first, second = (accuracy_runs(train_epochs=2).assign(test_accuracy=accuracy) for accuracy in (0.9, 0.3))
    second["run"] += "-seed1"
    first, second = (runs.assign(commit="abc") for runs in (first, second))
    kept = pd.concat([first, second])
    kept.loc[(kept["variant"] == "dlgs") & (kept["epoch"] > 1), "density"] = 0.02
    files = [tmp_path / "both.csv", tmp_path / "first.csv"]
    for file, runs in zip(files, (kept, first), strict=True):
        runs.to_csv(file, index=False)
    (sentence,) = (s for s in findings.write(tmp_path, NAMES, files, []) if "sends little" in s)
    assert "uncompressed 60.0 %" in sentence and "DLGS 60.0 %" in sentence


ENDS = {
    140: "VGG16 ended at a training accuracy of uncompressed 95.1 % and DLGS 93.1 %",
    0.4: "too short to rank methods: VGG16 0.4 of 140 epochs",
}


def test_every_ratio_has_an_accuracy_of_its_own():
    low = accuracy_runs(dlgs=0.8)
    low = low[low["variant"] == "dlgs"].assign(ratio=0.01, run=lambda rows: rows["run"] + "-0.01")
    found = findings.sentences({"timing": cell(), "accuracy": pd.concat([accuracy_runs(), low])}, NAMES)
    assert "uncompressed 95.1 %, DLGS 93.1 % at ratio 0.1 and DLGS 80.1 % at ratio 0.01 (n = 3 seeds)" in found[-1]


def test_only_seeds_that_both_methods_have_are_compared():
    runs = accuracy_runs()
    few = runs[(runs["variant"] != "dlgs") | (runs["seed"] == 2)]
    found = findings.sentences({"timing": cell(), "accuracy": few}, NAMES)
    assert "uncompressed 95.2 % and DLGS 93.2 % (n = 1 seeds)" in found[-1]


@pytest.mark.parametrize("epochs, words", ENDS.items())
def test_short_training_ranks_nothing(epochs, words):
    found = findings.sentences({"timing": cell(), "accuracy": accuracy_runs(train_epochs=epochs)}, NAMES)
    assert words in found[-1] and ("rank" in found[-1]) == (epochs < 140)


def test_no_compressed_runs_no_findings_of_them():
    found = said(whole(timing_run("none", 4.0)))
    assert len(found) == 2 and "waits for communication" in found[0] and "training accuracy" in found[1]
