"""What a person reads of how far a workflow is and how long it will take."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dlgs_bench.launch import progress
from dlgs_bench.launch.launcher import RunLogger
from dlgs_bench.spec import Measurement, RunSpec, Scheme, Training
from dlgs_bench.timemodel import length

pytestmark = pytest.mark.unit

TRAINED = RunSpec("accuracy", Training("a", batch=32, train_steps=100), measurement=Measurement(2, 10, 10))
LAYERS = RunSpec("layers", Training("a", batch=16), measurement=Measurement(budget_s=12.0))
TIMED = RunSpec("timing", Training("a"), measurement=Measurement(budget_s=60.0))
RUNS = {
    "calibration/layers/a": LAYERS,
    "calibration/exchanges/a": RunSpec("exchanges", Training("a"), measurement=Measurement(budget_s=18.0)),
    "accuracy/a-none": TRAINED,
    "accuracy/a-topk": RunSpec("accuracy", TRAINED.training, Scheme("topk"), measurement=TRAINED.measurement),
    "timing/a": TIMED,
}


def finish(folder: Path, spec: RunSpec, wall_s: float, **more) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"spec": json.loads(spec.to_json()), "wall_s": wall_s} | more))


def calibrate(folder: Path) -> None:
    """Write a calibration: a step of a batch of 16 takes 50 ms, its forward pass 16 ms."""
    place = folder / "calibration" / "layers" / "a"
    finish(place, LAYERS, 12.0, train_samples=6400)
    pd.DataFrame({"forward_s": [0.016] * 3, "iteration_s": [0.05] * 3}).to_csv(place / "iterations.csv", index=False)


@pytest.mark.parametrize(
    "seconds, words", [(0, "0:00 min"), (125.9, "2:05 min"), (7199, "119:59 min"), (7200, "2:00 h"), (16_279, "4:31 h")]
)
def test_long_times_are_in_hours(seconds, words):
    assert progress.clock(seconds) == words


def test_where_nothing_is_to_do_no_time_is_announced_or_expected(tmp_path):
    for name, spec in RUNS.items():
        finish(tmp_path / name, spec, 10.0)
    assert progress.announce(tmp_path, RUNS) == "0 of 5 runs to do"
    assert "first estimate" not in progress.against_announced(tmp_path)


def test_before_anything_is_known_budgets_add_up_and_the_others_are_counted(tmp_path):
    """With 45 s for the rest, budgets are 2:15 min: 1:41 to 3:22 min with the least and the greatest factor."""
    words = progress.announce(tmp_path, RUNS)
    known_s = 12 + 18 + 60
    assert words.startswith("5 of 5 runs to do, about 1 to 4 min for 3 of them; the others")
    assert (
        progress.whole(tmp_path / "timing" / "a", 3.0)
        == f"[0/5 runs done, at least {progress.clock(known_s - 3)} left] "
    )


def test_training_is_estimated_from_the_calibration_and_then_from_training_that_has_finished(tmp_path):
    calibrate(tmp_path)
    words = progress.announce(tmp_path, RUNS)
    training_s = length.START_S + 100 * length.STEP * 0.1 + 20 * 0.001 / 2
    left_s = 18 + 2 * training_s + 60
    assert words == f"4 of 5 runs to do, about {progress.clock(left_s + progress.REST_S)} for 4 of them"
    assert (
        progress.whole(tmp_path / "timing" / "a", 20.0) == f"[1/5 runs done, about {progress.clock(left_s - 20)} left] "
    )
    finish(tmp_path / "accuracy" / "a-none", TRAINED, 300.0)
    left_s = 18 + 300 + 60
    assert f"[2/5 runs done, about {progress.clock(left_s)} left] " == progress.whole(tmp_path / "timing" / "a", 0.0)


def test_training_of_another_length_says_nothing_and_a_resumed_one_counts_whole(tmp_path):
    longer = replace(TRAINED, training=replace(TRAINED.training, train_steps=3500))
    runs = {
        "accuracy/short": TRAINED,
        "accuracy/long": longer,
        "accuracy/longer": replace(longer, scheme=Scheme("topk")),
    }
    finish(tmp_path / "accuracy" / "short", TRAINED, 10.0)
    assert progress.announce(tmp_path, runs).endswith("2 of 3 runs to do; their time is estimated while they run")
    place = tmp_path / "accuracy" / "long"
    finish(place, longer, 20.0)  # since it was resumed
    pd.DataFrame({"elapsed_s": [100.0, 400.0]}).to_csv(place / "points.csv", index=False)
    assert f"about {progress.clock(400 + progress.REST_S)} for 1 of them" in progress.announce(tmp_path, runs)
    assert progress.spent(tmp_path) == f"accuracy {progress.clock(410)}"


def test_no_more_samples_are_tested_than_the_data_has(tmp_path):
    calibrate(tmp_path)
    place = tmp_path / "calibration" / "layers" / "a"
    own = length.speed(place)
    record = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps(record | {"test_samples": 4}))
    few = length.speed(place)
    assert own.rest_s(TRAINED) - few.rest_s(TRAINED) == pytest.approx(2 * (10 - 4) * 0.001 / 2)


@pytest.mark.parametrize("content", [None, "", "forward_s,iteration_s\n", "forward_s,iteration_s\n0.1\n", "a,b\n1,2\n"])
def test_a_missing_or_damaged_calibration_gives_no_estimate_and_stops_nothing(tmp_path, content):
    """The workflow makes the table again, or its script says what to delete."""
    calibrate(tmp_path)
    table = tmp_path / "calibration" / "layers" / "a" / "iterations.csv"
    table.unlink() if content is None else table.write_text(content)
    assert "4 of 5 runs to do" in progress.announce(tmp_path, RUNS)
    assert progress.whole(tmp_path / "accuracy" / "a-none", 1.0).startswith("[1/5 runs done")


@pytest.mark.parametrize("finished, spent_s, own_left_s", [(False, 20, 40), (False, 75, 0), (True, 75, 0)])
def test_the_time_of_a_run_that_is_late_or_finished_is_not_taken_from_the_other_runs(
    tmp_path, finished, spent_s, own_left_s
):
    progress.announce(tmp_path, RUNS)
    if finished:
        finish(tmp_path / "timing" / "a", TIMED, 75.0)
    left = f"at least {progress.clock(12 + 18 + own_left_s)} left"
    assert left in progress.whole(tmp_path / "timing" / "a", spent_s)


def test_a_workflow_without_runs_leaves_the_progress_of_another_one_alone(tmp_path):
    """A user calls ``snakemake so_far`` while another workflow trains."""
    progress.announce(tmp_path, RUNS)
    kept = {path: path.read_text() for path in tmp_path.glob("*.json")}
    assert progress.announce(tmp_path, {}, alone=False) == "0 of 0 runs to do"
    assert {path: path.read_text() for path in tmp_path.glob("*.json")} == kept and len(kept) == 2
    (announced,) = (path for path in kept if "begun" in kept[path])
    assert progress.against_announced(tmp_path)
    announced.write_text(json.dumps(json.loads(kept[announced]) | {"process": 1}))
    assert progress.against_announced(tmp_path) == ""  # of the other workflow


def test_a_run_without_an_estimate_tells_what_it_and_runs_like_it_will_take(tmp_path):
    runs = {"accuracy/a-none": TRAINED, "accuracy/a-topk": replace(TRAINED, scheme=Scheme("topk"))}
    words = progress.announce(tmp_path, runs)
    assert words == "2 of 2 runs to do; their time is estimated while they run"
    run = tmp_path / "accuracy" / "a-none"
    assert progress.whole(run, 40.0) == "[0/2 runs done] "
    assert "estimate" not in progress.against_announced(tmp_path)
    assert progress.whole(run, 40.0, 20.0, 90.0) == f"[0/2 runs done, about {progress.clock(20 + 90)} left] "  # resumed
    first = progress.clock(20 + 90 + progress.REST_S)
    assert progress.against_announced(tmp_path).endswith(f"; the first estimate of all runs was {first}")
    finish(run, TRAINED, 60.0)
    for known in (run, tmp_path / "accuracy" / "another"):
        assert progress.whole(known, 60.0, 5.0, 65.0) == f"[1/2 runs done, about {progress.clock(60)} left] "


def test_a_calibration_lies_one_folder_deeper_and_a_run_without_a_workflow_has_no_state(tmp_path):
    assert progress.whole(tmp_path / "timing" / "a", 0.0) == ""
    progress.announce(tmp_path, RUNS)
    assert progress.whole(tmp_path / "calibration" / "layers" / "a", 0.0).startswith("[0/5 runs done, at least ")


def test_a_calibration_on_other_data_says_nothing_about_training(tmp_path):
    runs = RUNS | {"accuracy/a-none": replace(TRAINED, training=replace(TRAINED.training, data="b"))}
    calibrate(tmp_path)
    assert "for 3 of them; the others" in progress.announce(tmp_path, runs)


def test_the_first_estimate_of_all_runs_is_compared_with_the_time_it_took(tmp_path):
    """A timing run with 3 schemes and 2 blocks of 5 repeats makes at least 3 * 10 steps, which take 150 ms each."""
    scheme = Scheme("none", timed_with={"topk": {"method": "topk"}, "dlgs": {"method": "dlgs"}})
    timed = replace(TIMED, training=TRAINED.training, scheme=scheme)
    timed = replace(timed, measurement=Measurement(launches=4, blocks=2, repeats=5, budget_s=20.0))
    runs = {"calibration/layers/a": LAYERS, "timing/a": timed}
    assert progress.announce(tmp_path, runs).endswith("; a better estimate follows when the models are calibrated")
    assert "estimate" not in progress.against_announced(tmp_path)
    calibrate(tmp_path)
    least_s = 4 * (length.START_S + 3 * 10 * 0.15)
    assert progress.whole(tmp_path / "timing" / "a", 0.0) == f"[1/2 runs done, about {progress.clock(least_s)} left] "
    finish(tmp_path / "timing" / "a", timed, 50.0)
    progress.whole(tmp_path / "timing" / "a", 0.0)
    took, expected = progress.against_announced(tmp_path).split("; ")
    assert expected == f"the first estimate of all runs was {progress.clock(least_s + progress.REST_S)}"
    assert took.startswith("0:0")
    assert "better" not in progress.announce(tmp_path, runs)  # the model is calibrated


def test_a_run_on_another_machine_does_not_read_the_clock_of_the_workflow(tmp_path, monkeypatch):
    progress.announce(tmp_path, {"calibration/layers/a": LAYERS, "timing/a": TIMED})
    calibrate(tmp_path)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(progress, "_machine", lambda: "another")
        progress.whole(tmp_path / "timing" / "a", 0.0)
    assert "estimate" not in progress.against_announced(tmp_path)
    progress.whole(tmp_path / "timing" / "a", 0.0)
    assert "estimate" in progress.against_announced(tmp_path)


def test_on_a_full_disk_a_message_is_still_printed(tmp_path, monkeypatch, capsys):
    progress.announce(tmp_path, {"calibration/layers/a": LAYERS, "timing/a": TIMED})
    calibrate(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(progress, "write_atomically", full)
    RunLogger(TIMED, tmp_path / "timing" / "a")("no space is left")
    assert capsys.readouterr().err.endswith("no space is left\n")


def test_a_damaged_record_counts_as_not_finished(tmp_path):
    calibrate(tmp_path)
    (tmp_path / "calibration" / "layers" / "a" / "run.json").write_text("{")
    assert progress.announce(tmp_path, RUNS).startswith("5 of 5 runs to do")


def test_a_finished_run_of_another_configuration_counts_as_not_finished(tmp_path):
    finish(tmp_path / "timing" / "a", TIMED, 60.0)
    assert progress.announce(tmp_path, {"timing/a": TIMED}).startswith("0 of 1 runs")
    longer = replace(TIMED, measurement=replace(TIMED.measurement, blocks=7))
    assert progress.announce(tmp_path, {"timing/a": longer}).startswith("1 of 1 runs")


def budgeted(budget_s: float) -> RunSpec:
    training = replace(TRAINED.training, train_steps=0, train_epochs=2, most_epochs=2)
    return replace(TRAINED, training=training, measurement=replace(TRAINED.measurement, budget_s=budget_s))


def test_a_training_with_a_budget_is_estimated_from_the_budget_and_then_from_the_calibration(tmp_path):
    """The training has 2 epochs of 100 steps, which take 120 ms each."""
    runs = RUNS | dict.fromkeys(("accuracy/a-none", "accuracy/a-topk"), budgeted(20.0))
    rest_s = 18 + 60 + progress.REST_S
    before_s = 12 + 2 * progress.OF_BUDGET * 20 + rest_s  # 2:47 min
    assert 2 * 60 < progress.FAST * before_s < 3 * 60 and 4 * 60 < progress.SLOW * before_s < 5 * 60
    assert progress.announce(tmp_path, runs).startswith("5 of 5 runs to do, about 2 to 5 min for 5 of")
    calibrate(tmp_path)
    speed = length.speed(tmp_path / "calibration" / "layers" / "a")
    assert speed.epochs(budgeted(20.0)) == 0.9  # 99 of 200 steps fit
    after = 2 * (length.START_S + 90 * 0.12 + 0.01) + rest_s
    assert progress.announce(tmp_path, runs) == f"4 of 5 runs to do, about {progress.clock(after)} for 4 of them"
    first = f"; the first estimate of all runs was {progress.clock(after)}"
    assert progress.against_announced(tmp_path).endswith(first)


def test_a_training_in_bfloat16_gets_more_epochs_from_the_same_budget(tmp_path):
    calibrate(tmp_path)
    speed, spec = length.speed(tmp_path / "calibration" / "layers" / "a"), budgeted(20.0)
    faster = replace(spec, training=replace(spec.training, precision="bfloat16"))
    assert speed.epochs(spec) == 0.9 and speed.epochs(faster) == 1.6  # 166 of 200 steps fit


@pytest.mark.parametrize("budget_s, epochs", [(0.5, 0.1), (8.0, 0.1), (20.2, 1.0), (1e4, 2.0)])
def test_a_budget_decides_the_epochs_and_never_more_than_were_asked_for(tmp_path, budget_s, epochs):
    calibrate(tmp_path)
    spec = budgeted(budget_s)
    assert length.speed(tmp_path / "calibration" / "layers" / "a").epochs(spec) == pytest.approx(epochs)
    path = tmp_path / "length.json"
    path.write_text(json.dumps(length.length_info(spec) | {"train_epochs": epochs}))
    found = length.with_length(path, spec)
    assert found.steps(6400) == 100 * epochs and found.asked() == spec
    # The whole schedule, in the shorter time.
    training = replace(found.training, epochs=140, lr_steps=(80,))
    assert [training.learning_rate(epochs * part) for part in (0.5, 0.6)] == pytest.approx([0.1, 0.01])
    with pytest.raises(ValueError, match=r"length\.json: the length is for budget_s .*, this run has budget_s 7"):
        length.with_length(path, budgeted(7.0))
