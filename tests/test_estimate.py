"""Estimates: what trials cover, what follows from them, and how far off they were."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import read

from dlgs_bench.config import load as config
from dlgs_bench.config import trials
from dlgs_bench.data import Shard, steps
from dlgs_bench.launch import remaining
from dlgs_bench.spec import Cluster, Measurement, RunSpec, Scheme, Training
from dlgs_bench.timemodel import estimate, length
from dlgs_bench.timemodel.estimate import Phase, RunCost, TrialResult

pytestmark = pytest.mark.unit

# Uncompressed: 1 s and 100 bytes a step. DLGS: one refresh in 4 steps, 3 s and 40 bytes, else 2 s and 20 bytes.
TRIAL = TrialResult(
    start_s=10.0,
    sample_s=0.5,
    train_samples=640,
    variants={
        "none": [Phase(1.0, RunCost(1.0, 100.0))],
        "dlgs": [Phase(0.25, RunCost(3.0, 40.0)), Phase(0.75, RunCost(2.0, 20.0))],
    },
)
TRAINED = RunSpec("accuracy", Training("resnet20", train_epochs=2), measurement=Measurement(3, 8, 40))
TIMED = replace(TRAINED, kind="timing", measurement=Measurement(launches=2, budget_s=60))


def test_a_training_by_hand():
    # 2 epochs of 640 samples in steps of 2 x 32: 20 steps of (3 + 3 x 2) / 4 s. 3 points: 8 + 8 + 40 samples, of which
    # a worker takes half, and 3 steps' time.
    assert estimate.accuracy(TRAINED, TRIAL, "dlgs") == RunCost(10 + 20 * 2.25 + 56 * 0.5 / 2 + 3 * 1.0, 20 * 25.0)


def test_no_more_samples_are_tested_than_the_data_has():
    few = estimate.accuracy(TRAINED, replace(TRIAL, test_samples=10), "dlgs")
    assert estimate.accuracy(TRAINED, TRIAL, "dlgs").seconds - few.seconds == (56 - 26) * 0.5 / 2


def test_a_training_with_a_budget_takes_no_longer_and_sends_less():
    whole = estimate.accuracy(TRAINED, TRIAL, "dlgs")
    within, half = (
        replace(TRAINED, measurement=replace(TRAINED.measurement, budget_s=whole.seconds * n)) for n in (2, 0.5)
    )
    assert estimate.accuracy(within, TRIAL, "dlgs") == whole
    assert estimate.accuracy(half, TRIAL, "dlgs") == RunCost(whole.seconds / 2, whole.sent_bytes / 2)


@given(
    st.integers(1, 10**6), st.integers(1, 500), st.integers(1, 9), st.floats(1e-3, 200), st.integers(1, 50),
    st.integers(0, 99),
)  # fmt: skip
def test_a_training_has_as_many_epochs_of_its_data_as_it_is_given(samples, batch, workers, epochs, points, train_steps):
    training = Training(batch=batch, train_epochs=epochs, train_steps=train_steps)
    spec = RunSpec("accuracy", training, Scheme(), Cluster(workers=workers), Measurement(points))
    epoch = steps(samples, Shard(batch, workers, 0, 0))
    assert spec.steps(samples) == (train_steps or max(points, round(epochs * epoch)))


@given(st.integers(1, 40), st.sampled_from(["none", "dlgs"]))
def test_twice_the_epochs_are_twice_the_training(epochs, label):
    once, twice, thrice = (
        estimate.accuracy(replace(TRAINED, training=replace(TRAINED.training, train_epochs=n * epochs)), TRIAL, label)
        for n in (1, 2, 3)
    )
    assert thrice.seconds - twice.seconds == pytest.approx(twice.seconds - once.seconds)
    assert twice.seconds - once.seconds == pytest.approx(epochs * 10 * TRIAL.step(label).seconds)
    assert twice.sent_bytes == pytest.approx(2 * once.sent_bytes)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.floats(0, 1e6), st.booleans()), min_size=1))
def test_rows_add_up_and_a_finished_run_costs_nothing_more(runs):
    specs, left = {}, {}
    for number, (model, timed, seconds, done) in enumerate(runs):
        spec = TIMED if timed else TRAINED
        cluster = Cluster(workers=3, device="cuda")
        specs[f"{number}"] = replace(spec, training=replace(spec.training, model=model), cluster=cluster)
        if not done:
            left[f"{number}"] = RunCost(seconds, 2 * seconds)
    table = estimate.table(specs, left)
    assert not table.duplicated(["model", "kind"]).any()
    assert table["runs"].sum() == len(runs) and table["finished"].sum() == len(runs) - len(left)
    seconds = sum(one.seconds for one in left.values())
    assert table["hours"].sum() == pytest.approx(seconds / 3600)
    assert table["gpu_hours"].sum() == pytest.approx(3 * seconds / 3600)
    assert table["sent_bytes"].sum() == pytest.approx(2 * seconds)
    for row in table[table["runs"] == table["finished"]].itertuples():
        assert row.hours == row.gpu_hours == row.sent_bytes == 0


def test_a_trial_is_read_from_its_table():
    columns = ["block", "variant", "phase", "share", "iteration_s", "sent_bytes"]
    rows = [
        (1, "none", "step", 1.0, 1.0, 100), (1, "dlgs", "refresh", 0.25, 3.0, 40), (1, "dlgs", "reuse", 0.75, 2.0, 20),
        (2, "none", "step", 1.0, 3.0, 100), (2, "dlgs", "refresh", 0.25, 5.0, 40), (2, "dlgs", "reuse", 0.75, 2.0, 20),
    ]  # fmt: skip
    iterations = pd.DataFrame(rows, columns=columns).assign(forward_s=0.8)
    spec = RunSpec("timing", Training("resnet20", batch=16))
    run = {"spec": json.loads(spec.to_json()), "wall_s": 84.0, "launched": 3, "train_samples": 640}
    found = estimate.measured(run, iterations)
    assert found.start_s == pytest.approx(84 / 3 - 16)  # launched three times, 16 s of iterations
    assert found.sample_s == pytest.approx(0.05)
    assert found.step("none") == RunCost(2.0, 100.0)
    assert found.step("dlgs") == RunCost(0.25 * 4 + 0.75 * 2, 25.0)


def quick(**more) -> config.Config:
    return config.load(read("quick") | {"network": "host"} | more, "c")


@pytest.mark.parametrize("more", [{}, {"seeds": [0, 1]}, {"methods": "all", "topologies": ["allgather"]}])
def test_every_accuracy_run_is_in_one_trial_under_its_own_conditions(more):
    found = quick(**more)
    made = trials.of(found.runs)
    trained = [name for name, spec in found.runs.items() if spec.kind == "accuracy"]
    assert sorted(run for trial in made.values() for run in trial.labels) == sorted(trained)
    assert made.keys() == found.studies["estimate"].keys()
    for trial in made.values():
        assert len(trial.spec.scheme.timed_with) <= trials.MOST
        for name, label in trial.labels.items():
            run, alone = found.runs[name], trial.spec.scheme.alone(label)
            assert (alone.method, alone.options) == (run.scheme.method, run.scheme.options)
            assert trial.spec.cluster == run.cluster and trial.spec.processes == run.processes
            assert (alone.topology, alone.wire, alone.collective) == (
                run.scheme.topology,
                run.scheme.wire,
                run.scheme.collective,
            )
            for field in ("model", "data", "batch", "precision"):
                assert getattr(trial.spec.training, field) == getattr(run.training, field)


def test_a_longer_training_and_more_seeds_need_no_other_trial():
    models = {"resnet20": read("quick")["models"]["resnet20"]}
    longer = {"resnet20": models["resnet20"] | {"train_epochs": 30, "lr": 0.1}}
    before, after = (trials.of(quick(models=one, seeds=seeds).runs) for one, seeds in ((models, [0]), (longer, [0, 7])))
    assert {name: trial.spec for name, trial in before.items()} == {name: trial.spec for name, trial in after.items()}


def test_a_run_is_finished_if_it_is_the_one_that_is_asked_for(tmp_path):
    asked = replace(TIMED, cluster=Cluster(network="testbed", in_proportion=True))
    assert remaining.record(tmp_path, asked) is None
    found_out = replace(asked, cluster=replace(asked.cluster, rates_mbit=(9.0, 9.0), calibrated_s=1.0))
    found_out = replace(found_out, scheme=replace(asked.scheme, groups=((0, 59),)))
    (tmp_path / "run.json").write_text(json.dumps({"spec": json.loads(found_out.to_json()), "wall_s": 12.0}))
    assert remaining.record(tmp_path, asked)["wall_s"] == 12.0
    assert remaining.record(tmp_path, replace(asked, training=Training("resnet20", train_epochs=3))) is None
    earlier = {"cluster": {}, "an option of long ago": 1}
    for damaged in ("{", "[]", "{}", "null", '{"spec": null}', json.dumps({"spec": earlier})):
        (tmp_path / "run.json").write_text(damaged)
        assert remaining.record(tmp_path, asked) is None


def test_a_training_that_was_stopped_took_all_its_sittings(tmp_path):
    assert length.took_s(tmp_path, {"wall_s": 12.0}) == 12.0
    (tmp_path / "points.csv").write_text("step,elapsed_s\n1,20\n2,40\n")
    assert length.took_s(tmp_path, {"wall_s": 12.0}) == 40.0
    assert length.took_s(tmp_path, {"wall_s": 44.0}) == 44.0


def test_what_finished_is_held_against_its_last_estimate(tmp_path):
    file, runs = tmp_path / "runs" / "estimates.json", {"a": TRAINED, "b": TIMED, "c": TRAINED}
    assert estimate.off(estimate.read_estimates(file), runs, {"a": 1.0}).empty
    estimate.keep(file, runs, {name: RunCost(100.0, 0.0) for name in runs})
    estimate.keep(file, runs, {"b": RunCost(10.0, 0.0), "c": RunCost(10.0, 0.0)})  # a has finished
    changed = runs | {"c": replace(TRAINED, training=Training("resnet20", train_epochs=9))}
    found = estimate.off(estimate.read_estimates(file), changed, {"a": 150.0, "b": 5.0, "c": 99.0})
    assert found.to_dict() == {"a": 1.5, "b": 0.5}  # c was estimated as another run
    assert estimate.worst(found) == "b"
