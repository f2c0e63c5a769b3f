"""An accuracy run that is stopped anywhere goes on from its last checkpoint, bit for bit as if it had never stopped."""

import errno
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from equal_worker import go_on, session_of
from support import NEEDS, PATIENCE_S, ROOT, checkpointed, numbers, until

from dlgs_bench.comm.local import run_workers
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Scheme, Training
from dlgs_bench.training import checkpoint
from dlgs_bench.training.checkpoint import Checkpoints, Stopped

engine, slow, unit = pytest.mark.engine, pytest.mark.slow, pytest.mark.unit

STEPS, PAUSE_S = 400, "0.03"  # 12 s where a run is to be stopped, none where it is not
STOPS = {  # by topology and engine
    ("allgather", "torch_dist"): ("rank 1", "rank 0", "the launcher"),
    ("allgather", "horovod"): ("rank 0", "the launcher"),
    ("ps-weights", "torch_dist"): ("rank 2",),  # the server
}
LAUNCHER = """
import sys
from pathlib import Path
from dlgs_bench.launch import launcher
from dlgs_bench.launch.__main__ import clean_up_when_ended
from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import LaunchSettings, RunSpec
launcher.SAVE_GRACE_S = 60  # on a busy machine ranks need longer to save
spec, place, folder = sys.argv[1:]
clean_up_when_ended()
sys.exit(launch(RunSpec.from_json(spec), LaunchSettings.from_json(place), Path(folder, "run"), Path(folder, "log")))
"""


def launcher(spec: RunSpec, folder: Path, every_s: float, project: Path = ROOT, data: Path = ROOT, **environment):
    """The run as a process; at the end there is ``folder``/run."""
    folder.mkdir(exist_ok=True)
    place = LaunchSettings(data_root=str(data), checkpoint_every_s=every_s)
    command = [sys.executable, "-c", LAUNCHER, spec.to_json(), place.to_json(), str(folder)]
    return subprocess.Popen(command, cwd=project, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen) -> str:
    """What the launcher printed, when it has ended."""
    said = process.communicate(timeout=PATIENCE_S)[1]
    print(said)
    return said


def tiny_run(engine: str, topology: str) -> RunSpec:
    return RunSpec(
        "accuracy", Training("tiny", "vectors", batch=8, train_steps=STEPS, lr_steps=()),
        Scheme("dlgs", options={"ratio": 0.1, "refresh_every": 4}, topology=topology), Cluster(engine),
        Measurement(evaluations=3, test_samples=20, final_test_samples=40),
    )  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tiny_source, tmp_path_factory) -> Callable[[str], Path]:
    """A topology -> a run that was never stopped, made once: every engine ends with the same bits."""

    @cache
    def run(topology: str) -> Path:
        folder = tmp_path_factory.mktemp("uninterrupted")
        process = launcher(tiny_run("torch_dist", topology), folder, 600, tiny_source)
        ended(process)
        assert process.returncode == 0
        return folder / "run"

    return run


@engine
@slow
@pytest.mark.parametrize("topology, engine", [pytest.param(*one, marks=NEEDS[one[1]]) for one in STOPS])
def test_a_run_whose_ranks_are_killed_in_turn_ends_as_one_that_never_was(
    topology, engine, uninterrupted, tiny_source, tmp_path, fault
):
    spec, folder = tiny_run(engine, topology), tmp_path / "killed"

    def newest() -> int:
        return checkpointed(folder / "run", spec.processes)

    for stop in STOPS[topology, engine]:
        before = newest()
        process = launcher(spec, folder, 0.1, tiny_source, VECTORS_PAUSE_S=PAUSE_S)
        until(lambda before=before, process=process: newest() > before or process.poll() is not None)
        time.sleep(0.5 * random.random())
        assert process.poll() is None
        reached, begun = newest(), time.monotonic()
        if stop == "the launcher":
            process.send_signal(signal.SIGTERM)  # asks the ranks to end
        else:
            ((pid_file),) = folder.glob(f"run.partial/*/{stop.replace(' ', '')}.pid")
            os.kill(int(pid_file.read_text().split()[1]), signal.SIGKILL)
        ended(process)
        fault(f"{stop} {'asked to end' if stop == 'the launcher' else 'killed'}, {engine}, {topology}", begun)
        assert process.returncode == 1 and not (folder / "run").exists()
    assert newest() > reached or stop != "the launcher"  # which saves when it is asked to end
    process = launcher(spec, folder, 600, tiny_source)
    assert f"goes on after step {newest()}" in ended(process) and process.returncode == 0
    whole = uninterrupted(topology)
    for before, after in zip(numbers(whole), numbers(folder / "run"), strict=True):
        pd.testing.assert_frame_equal(before, after)
    before, after = (json.loads((run / "run.json").read_text()) for run in (whole, folder / "run"))
    assert before["weights"] == after["weights"] and before["checkpoints"]["saved"] == 0
    assert len(numbers(folder / "run")[1]) == STEPS and not (folder / "run.checkpoints").exists()


@engine
@slow
def test_training_whose_data_other_processes_read_saves_when_it_is_asked_to_end(imagenet, tmp_path):
    """The reading processes are not asked to end: torch treats their end as an error."""
    spec = RunSpec(
        "accuracy", Training("resnet50", "imagenet100", batch=1, train_steps=200, lr_steps=()),
        Scheme("none"), Cluster("torch_dist"), Measurement(evaluations=1, test_samples=2, final_test_samples=2),
    )  # fmt: skip
    process = launcher(spec, tmp_path, every_s=600, data=imagenet)
    ranks = [tmp_path / f"run.partial/launch1/rank{rank}.json" for rank in range(2)]
    until(lambda: all(rank.exists() for rank in ranks) or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    said = ended(process)
    assert process.returncode == 1 and checkpointed(tmp_path / "run") > 0, said


def train(
    folder: Path, end: int, every_s: float = 0.0, run: str = "this", stop: bool = False, machines: list | None = None
) -> list:
    """Two workers go on from their checkpoint to step ``end``; their parameters, and where each began.

    ``machines``: each worker adds the machines of the run.
    """

    def work(comm):
        session = session_of(comm, "dlgs")
        checkpoints = Checkpoints(folder, every_s, run, lambda text: print(text, file=sys.stderr))
        checkpoints.resume(session)
        begun = session.done
        while session.done < end:
            go_on(session, session.done + 1)
            if stop and session.done == end and comm.rank == 1:
                checkpoints.stop()
            checkpoints.save_if_due(session)
        if machines is not None:
            machines.append(checkpoints.machines)
        return session.flat.parameters.clone(), begun

    return run_workers(2, work)


@pytest.fixture
def every_step(monkeypatch):
    """Ranks look after each step whether to save."""
    monkeypatch.setattr(checkpoint, "POLL_INTERVAL_S", 0.0)


@unit
def test_the_two_newest_are_kept_and_the_newest_that_is_sound_is_taken(every_step, tmp_path, capsys):
    whole = train(tmp_path / "other", 6)
    tmp_path = tmp_path / "own"
    train(tmp_path, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"3", "4"}
    damaged = tmp_path / "4" / "rank1"
    content = damaged.read_bytes()
    flipped = []
    for place in (0, 8, 10, len(content) // 2, len(content) - 1):  # in the checksum, in the run's name, in the state
        flipped.append(bytearray(content))
        flipped[-1][place] ^= 1
    for broken in (*flipped, content[:-100], b"", None):
        damaged.unlink() if broken is None else damaged.write_bytes(broken)
        capsys.readouterr()
        found = train(tmp_path, 6, every_s=600)
        assert [begun for _, begun in found] == [3, 3]
        assert all(torch.equal(own, before) for (own, _), (before, _) in zip(found, whole, strict=True))
        said = "the checkpoint of step 4 is damaged, rank 1\n" if broken is not None else ""
        assert capsys.readouterr().err == f"{said}goes on after step 3\n"


@unit
def test_a_run_that_goes_on_on_another_machine_says_so_and_names_both(every_step, tmp_path, monkeypatch, capsys):
    seen = ["slow"]
    for end, here in ((2, "slow"), (3, "slow"), (4, "fast"), (5, "slow"), (6, "slow")):
        monkeypatch.setattr(checkpoint, "machine", lambda device, here=here: here)
        train(tmp_path, end, machines=(machines := []))
        said = capsys.readouterr().err
        other = f"the machine was {seen[-1]}, and is {here}: it may compute other bits"
        assert (other in said) == (here != seen[-1]) == ("may compute" in said)
        seen += [here] if here != seen[-1] else []
        assert machines == 2 * [seen]


@unit
def test_a_checkpoint_of_another_run_is_named_and_left_alone(every_step, tmp_path, capsys):
    train(tmp_path, 8, run="other")
    assert [begun for _, begun in train(tmp_path, 4)] == [0, 0]
    assert re.fullmatch(r"begins again: the checkpoint of step 8 is of other code, .*\n", capsys.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} == {"3", "4", "7", "8"}
    assert [begun for _, begun in train(tmp_path, 5)] == [4, 4]
    assert capsys.readouterr().err == "goes on after step 4\n"
    assert [begun for _, begun in train(tmp_path, 9, run="other")] == [8, 8]  # the first one can still go on


@unit
def test_a_checkpoint_of_another_run_stays_if_this_run_passes_it_and_goes_on(every_step, tmp_path):
    train(tmp_path, 3, run="other")
    with pytest.raises(Stopped, match="stopped after step 5"):
        train(tmp_path, 5, every_s=600, stop=True)  # saves nothing before step 5
    assert [begun for _, begun in train(tmp_path, 7)] == [5, 5]
    assert {path.name for path in tmp_path.iterdir()} == {"2", "3", "6", "7"}
    assert [begun for _, begun in train(tmp_path, 4, run="other")] == [3, 3]


@unit
def test_a_full_disk_costs_a_checkpoint_and_not_the_run(every_step, tmp_path, monkeypatch, capsys):
    train(tmp_path, 2)
    real = checkpoint.write_atomically

    def full(path, content, durable):
        if path.name == "rank1":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content, durable)

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    found = train(tmp_path, 5)
    assert "no checkpoint of step 5: No space left on device" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}  # nothing of those that rank 0 alone could write
    with pytest.raises(Stopped, match="stopped after step 4, without a checkpoint of it"):
        train(tmp_path, 4, every_s=600, stop=True)
    monkeypatch.undo()
    assert [begun for _, begun in train(tmp_path, 2)] == [2, 2] and [begun for _, begun in found] == [2, 2]


@unit
def test_a_checkpoint_is_due_again_a_whole_interval_after_the_last_one(every_step, tmp_path, monkeypatch):
    """Each step takes 4 s, and checkpoints are 10 s apart, so every third step saves one."""
    now = [0.0]
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def work(comm):
        session, saved = session_of(comm, "dlgs"), []
        checkpoints = Checkpoints(tmp_path, 10.0, "this", print)
        for step in range(1, 10):
            now[0] += 4.0
            checkpoints.save_if_due(go_on(session, step))
            saved.append(checkpoints.cost["saved"])
        return saved

    assert run_workers(1, work) == [[0, 0, 1, 1, 1, 2, 2, 2, 3]]


@unit
def test_a_rank_that_is_asked_to_end_has_all_save(every_step, tmp_path):
    with pytest.raises(Stopped, match="stopped after step 3"):
        train(tmp_path, 3, every_s=600, stop=True)
    assert [begun for _, begun in train(tmp_path, 4)] == [3, 3]


@unit
def test_what_decides_a_run_decides_whose_checkpoint_it_is(monkeypatch):
    spec = RunSpec("accuracy", Training("resnet20"), Scheme("dlgs", options={"ratio": 0.1}))
    known = checkpoint.identity(spec)
    assert checkpoint.identity(spec) == known
    assert checkpoint.identity(replace(spec, training=replace(spec.training, lr=0.2))) != known
    for owner, name, value in ((torch, "__version__", "0.1"), (platform, "python_version", lambda: "2.7.18")):
        with monkeypatch.context() as other:
            other.setattr(owner, name, value)
            assert checkpoint.identity(spec) != known
