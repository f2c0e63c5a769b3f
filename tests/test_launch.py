"""Launching, on real processes: results come home whole or not at all, and nothing outlives a run."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support import PATIENCE_S, ROOT, every_engine, horovod_is_slow, of_run, until

from dlgs_bench import fingerprint
from dlgs_bench.engines import ENGINES
from dlgs_bench.launch import disturbance, launcher, liveness, nodes, one_machine, processes
from dlgs_bench.spec import Cluster, LaunchSettings, Measurement, RunSpec, Training

WORKER = [sys.executable, str(ROOT / "tests" / "stand_in_worker.py")]


def run_spec(engine: str = "torch_dist") -> RunSpec:
    return RunSpec("accuracy", Training("resnet20", batch=7), cluster=Cluster(engine))


slow = pytest.mark.slow


def start(folder: Path, what: str, engine: str = "torch_dist", leave_after_s: float = 30, **place) -> int:
    place = LaunchSettings(data_root="here", **place)
    return launcher.launch(run_spec(engine), place, folder / "run", folder / "log", [*WORKER, what, f"{leave_after_s}"])


def ranks(folder: Path) -> int:
    """How many ranks have reported progress."""
    return len(list(folder.glob("run.partial/*/rank*.json")))


def nothing_left(folder: Path) -> bool:
    """Whether the log is all that remains of a run that did not end well."""
    return {path.name for path in folder.iterdir()} == {"log"} and until(lambda: not of_run(folder))


@pytest.mark.engine
@every_engine
def test_a_run_that_ends_well_brings_its_files_home(engine, tmp_path, capsys):
    assert start(tmp_path, "ends", engine) == 0, (tmp_path / "log").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"log", "run"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"points.csv", "run.json"}
    assert (tmp_path / "run" / "points.csv").read_text() == "batch,data\n7,here\n"
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["wall_s"] > 0 and list(run["files"]) == ["points.csv"]
    assert "accuracy resnet20 none: done in 0:" in capsys.readouterr().err


@pytest.mark.unit
def test_a_run_names_the_commits_of_all_its_launches(tmp_path):
    launches = []
    for number, commit in enumerate(("1111111", "2222222", "1111111")):
        part = tmp_path / f"launch{number}"
        part.mkdir()
        (part / "run.json").write_text(json.dumps({"provenance": {"commit": commit}}))
        launches.append((part, None))
    launcher.publish_results(launches, tmp_path / "run", 1.0, 3)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["provenance"]["commit"] == "1111111, 2222222"


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_results_are_moved_comes_too_late(number, tmp_path, monkeypatch):
    """Whatever was not moved yet would be lost."""

    def leave(*_) -> None:
        raise SystemExit(1)

    def interrupted(path) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.01)  # handlers run between two instructions

    before = signal.signal(number, leave)
    try:
        monkeypatch.setattr(launcher, "wait_for_disk", interrupted)
        assert start(tmp_path, "ends") == 0
        assert {path.name for path in (tmp_path / "run").iterdir()} == {"points.csv", "run.json"}
        assert signal.getsignal(number) is leave
    finally:
        signal.signal(number, before)


@pytest.mark.engine
@horovod_is_slow
def test_a_run_that_fails_shows_the_first_error_and_leaves_nothing(engine, tmp_path, capsys):
    assert start(tmp_path, "fails", engine) != 0
    shown = capsys.readouterr().err
    assert f"failed; more in {tmp_path / 'log'}:\nTraceback" in shown
    assert shown.endswith("\nArithmeticError: broken on purpose\n")  # not the error of the rank that lost the other
    assert "broken on purpose" in (tmp_path / "log").read_text()
    assert nothing_left(tmp_path)


@pytest.mark.engine
@horovod_is_slow
def test_a_rank_that_is_killed_is_named_though_it_and_the_others_said_nothing(engine, tmp_path, capsys):
    assert start(tmp_path, "killed", engine) != 0
    place = r"(last at step \d+ of \d+|not one step since the launch)"
    assert re.search(f"rank 1, a worker, has died, {place}; more in {tmp_path / 'log'}", capsys.readouterr().err)
    assert nothing_left(tmp_path)


KILLS_RANK_1 = """
import os, signal, time
if os.environ.get("HOROVOD_RANK", os.environ.get("RANK")) == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


@pytest.mark.engine
@pytest.mark.slow
@every_engine
def test_an_engines_own_launcher_names_a_rank_that_was_killed(engine):
    """The engine's launcher also starts ranks on other hosts. Here it starts them on this machine."""
    program = [sys.executable, "-c", KILLS_RANK_1]
    (command,) = ENGINES[engine].on_nodes({"localhost": 2}, "", nodes.free_port(), program).values()
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode and re.search(ENGINES[engine].killed, done.stdout + done.stderr)[1] == "1"


@pytest.mark.unit
def test_the_processes_of_a_run_are_as_nice_as_the_workflow(tmp_path, monkeypatch):
    own = Path("/proc/self/autogroup")
    if not (own.exists() and "nice" in own.read_text()):
        pytest.skip("this kernel has no autogroups")
    monkeypatch.setattr(processes, "_launcher", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    for nice in (0, 7):
        monkeypatch.setattr(os, "nice", lambda by, nice=nice: nice)
        process = processes.start(RunSpec("exchanges"), LaunchSettings(), [], tmp_path / "log", [])
        try:
            assert f"nice {nice}\n" in Path(f"/proc/{process.pid}/autogroup").read_text()
        finally:
            processes.stop(process)


@pytest.mark.unit
def test_a_reserved_port_is_for_the_server_that_is_told_it():
    with one_machine.reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        socket.create_server(("", port)).close()


SAVES_ON_SIGTERM = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(1.5)
    pathlib.Path(sys.argv[1]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""
SUPERVISES = """
import sys
from dlgs_bench.launch import supervise
supervise.TERM_GRACE_S = 0.2
sys.exit(supervise.run([[sys.executable, "-c", sys.argv[1], sys.argv[2]]], "rank"))
"""


@pytest.mark.unit
def test_ranks_may_save_if_their_supervisor_is_asked_to_end_as_well(tmp_path):
    """At its time limit, Slurm signals all processes of a job."""
    command = [sys.executable, "-c", SUPERVISES, SAVES_ON_SIGTERM, str(tmp_path / "saved")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "[0]<stdout>:ready\n"
        process.terminate()
    assert (tmp_path / "saved").exists()


@pytest.mark.unit
def test_ranks_of_torch_are_numbered_on_every_host():
    variables = ENGINES["torch_dist"].on_hosts(["10.0.0.1", "10.0.0.1", "10.0.0.2"], "lo", 7, str)
    own = [(one["RANK"], one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"]) for one in variables]
    assert own == [("0", "0", "2"), ("1", "1", "2"), ("2", "0", "1")]
    shared = {(one["MASTER_ADDR"], one["MASTER_PORT"], one["WORLD_SIZE"]) for one in variables}
    assert shared == {("10.0.0.1", "7", "3")}


@pytest.fixture
def measure(tmp_path, monkeypatch) -> Callable:
    """A function that runs two launches of given slowdowns and forward seconds (1 s is normal). It returns the table,
    what disturbed the run, and the number of launches."""

    def measured(*launches: str, cores: int = 2, kind: str = "timing", steps: int = 0) -> tuple[str, str, int]:
        left = list(launches)

        def once(spec: RunSpec, place: LaunchSettings, part: Path, *_) -> int:
            part.mkdir(parents=True)
            (part / "iterations.csv").write_text(f"block,slowdown,forward_s\n1,{left.pop(0)}\n")
            (part / "run.json").write_text('{"provenance": {"commit": "1234567"}}')
            return 0

        monkeypatch.setattr(launcher, "once", once)
        # A launch that takes no time has no fraction of the cores' time that could be measured.
        monkeypatch.setattr(launcher.OtherWork, "fraction", lambda work: 0.0)
        monkeypatch.setattr(launcher.os, "sched_getaffinity", lambda process: set(range(cores)))
        spec = replace(run_spec(), kind=kind, measurement=Measurement(launches=2))
        spec = replace(spec, training=replace(spec.training, train_steps=steps))
        assert launcher.launch(spec, LaunchSettings(), tmp_path / "run", tmp_path / "log", forward_s=1.0) == 0
        run = json.loads((tmp_path / "run" / "run.json").read_text())
        return (tmp_path / "run" / "iterations.csv").read_text(), run["disturbed"], len(launches) - len(left)

    return measured


@pytest.mark.unit
def test_several_launches_make_one_table(measure):
    assert measure("1,1.1", "1,0.9") == ("launch,block,slowdown,forward_s\n1,1,1,1.1\n2,1,1,0.9\n", "", 2)


@pytest.mark.unit
def test_a_disturbed_launch_is_repeated(measure, capsys):
    table = "launch,block,slowdown,forward_s\n1,1,1,1\n2,1,1.5,1.5\n"  # slower from its beginning: not disturbed
    assert measure("1,1", "1,2", "1.5,1.5") == (table, "", 3)
    said = "a forward pass took 2.00 times the expected time: measured once more"
    assert said in capsys.readouterr().err


@pytest.mark.unit
def test_a_run_that_stays_disturbed_is_marked_and_says_so(measure, capsys):
    table, disturbed, launches = measure("1,1", "1,2", "1,2", "1,2", "1,1")
    assert table == "launch,block,slowdown,forward_s\n1,1,1,1\n2,1,1,2\n" and launches == 4
    assert disturbed == "a forward pass took 2.00 times the expected time"
    assert capsys.readouterr().err.count(f"{disturbed}: kept, and marked as disturbed") == 1


@pytest.mark.unit
@pytest.mark.parametrize("launch_s, repeats", [(20, 2), (30, 1), (44, 1), (46, 0)])
def test_a_launch_is_repeated_within_the_budget_and_a_short_one_once_beyond_it(launch_s, repeats):
    spec = replace(run_spec(), measurement=Measurement(budget_s=60 if launch_s == 20 else 50))
    done = 0
    while launcher._may_repeat(spec, done, launch_s, (done + 1) * launch_s):
        done += 1
    assert done == repeats


@pytest.mark.unit
def test_ranks_that_share_cores_are_not_held_against_the_calibration(measure):
    assert measure("1,2", "1,2", cores=1) == ("launch,block,slowdown,forward_s\n1,1,1,2\n2,1,1,2\n", "", 2)


@pytest.mark.unit
@pytest.mark.parametrize("kind, steps, repeated", [("accuracy", 0, 0), ("hybrid", 150, 0), ("hybrid", 0, 1)])
def test_only_a_run_that_measures_times_is_repeated(measure, kind, steps, repeated):
    *_, launches = measure("1,1", "1,2", "1,1", kind=kind, steps=steps)
    assert launches == 2 + repeated


@pytest.mark.unit
def test_other_work_is_noticed_and_the_work_of_children_is_not():
    spin = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"]
    own_s = disturbance._own_s()
    subprocess.run(spin)
    assert disturbance._own_s() - own_s >= 0.3
    began, begun = time.monotonic(), disturbance.OtherWork()
    other = subprocess.Popen(spin)
    assert until(lambda: psutil.Process(other.pid).status() == psutil.STATUS_ZOMBIE)
    fraction = begun.fraction()  # nobody has waited for it: the work of a stranger
    assert other.wait() == 0 and fraction * (time.monotonic() - began) * len(os.sched_getaffinity(0)) >= 0.15


@pytest.mark.unit
def test_time_that_other_guests_of_the_machine_take_is_other_work(monkeypatch, tmp_path):
    """The kernel counts it as stolen. Cores may have any numbers, and a container may not list some of them."""
    now, file, tick = [0.0], tmp_path / "stat", 1 / os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(disturbance.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(disturbance.os, "sched_getaffinity", lambda _: {2, 7, 9})
    monkeypatch.setattr(disturbance, "STATISTICS", file)

    def write(stolen_s: float) -> None:
        cores = {"cpu": 0, "cpu0": 10**6, "cpu2": stolen_s, "cpu7": stolen_s, "cpu71": 10**6}
        file.write_text("".join(f"{core} 100 100 100 0 0 0 0 {s / tick:.0f} 0 0\n" for core, s in cores.items()))

    write(0.0)
    begun = disturbance.OtherWork()
    now[0] = 1000.0
    write(300.0)
    assert begun.fraction() == pytest.approx(0.2, abs=0.01)  # 600 s of 3 x 1000 s


@pytest.mark.unit
@pytest.mark.parametrize(("forward_s", "why"), [("1.3", "1.30 times"), ("0.7", "0.70 times"), ("1.2", ""), ("0.8", "")])
def test_a_change_of_speed_in_either_direction_disturbs_a_run(tmp_path, monkeypatch, forward_s, why):
    monkeypatch.setattr(disturbance, "MAX_SPEED_CHANGE", 0.25)
    table = tmp_path / "iterations.csv"
    table.write_text(f"slowdown,forward_s\n1,{forward_s}\n")
    assert why in (disturbance.why_disturbed(0.0, table, 1.0) or "")
    assert bool(disturbance.why_disturbed(0.0, table, 1.0)) == bool(why)


@pytest.mark.engine
@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_the_run_is_stopped(tmp_path, capsys):
    assert start(tmp_path, "hangs", "torch_dist", hang_timeout_s=20) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith(" none: rank 1 reported no progress for 20 s, last at step 4 of 50, stopped")
    assert nothing_left(tmp_path)


LAUNCHER = """
import sys
from pathlib import Path
from dlgs_bench.launch.__main__ import clean_up_when_ended
from dlgs_bench.launch.launcher import launch
from dlgs_bench.spec import LaunchSettings, RunSpec
spec, folder, *program = sys.argv[1:]
clean_up_when_ended()
launch(RunSpec.from_json(spec), LaunchSettings(), Path(folder, "run"), Path(folder, "log"), program)
"""


def going_on(folder: Path, leave_after_s: float, engine: str = "torch_dist") -> subprocess.Popen:
    """A launcher as a process of its own, whose ranks go on for ever."""
    arguments = [run_spec(engine).to_json(), str(folder), *WORKER, "goes on", f"{leave_after_s}"]
    # Below nohup, tests ignore SIGHUP, and so would all that they start.
    command = ["env", "--default-signal=HUP", sys.executable, "-c", LAUNCHER, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


@pytest.mark.engine
@horovod_is_slow
def test_nothing_outlives_a_launcher_that_was_killed(engine, tmp_path):
    """The kernel kills the launcher's processes at once. test_launch_hosts.py has ranks on other hosts."""
    killed = going_on(tmp_path, 600, engine)
    try:
        assert until(lambda: ranks(tmp_path) == 2)
        below = psutil.Process(killed.pid).children(recursive=True)
        assert len(below) >= 3
    finally:
        killed.kill()
        killed.wait()
    assert until(lambda: not any(map(processes.lives, below)))


@pytest.mark.engine
@pytest.mark.parametrize("ask", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=slow)])
def test_a_launcher_that_is_asked_to_end_cleans_up(ask, tmp_path):
    asked = going_on(tmp_path, 600)
    try:
        assert until(lambda: ranks(tmp_path) == 2)
        asked.send_signal(ask)
        assert asked.wait(PATIENCE_S) == 1
    finally:
        asked.kill()
    assert nothing_left(tmp_path)


@pytest.mark.engine
@pytest.mark.slow
def test_a_second_launch_of_a_run_waits_for_the_first_and_is_refused_in_the_end(tmp_path, monkeypatch, capsys):
    first = going_on(tmp_path, leave_after_s=600)
    try:
        assert until(lambda: ranks(tmp_path) == 2)
        monkeypatch.setattr("dlgs_bench.launch.launcher.SAVE_GRACE_S", 0.5)
        assert start(tmp_path, "ends") == 1 and first.poll() is None and ranks(tmp_path) == 2
        expected = f"{tmp_path / 'run'}: another process is writing it; wait for it, or stop it\n"
        assert capsys.readouterr().err.endswith(expected)
        monkeypatch.setattr("dlgs_bench.launch.launcher.SAVE_GRACE_S", PATIENCE_S)
        threading.Timer(1, first.terminate).start()
        assert start(tmp_path, "ends") == 0 and first.wait() == 1
    finally:
        first.kill()
    assert {path.name for path in tmp_path.iterdir()} == {"log", "run"}


@pytest.mark.engine
def test_a_run_ends_with_its_workflow(tmp_path, capsys):
    workflow = subprocess.Popen(["sleep", "2"])
    assert start(tmp_path, "goes on", leave_after_s=600, workflow=workflow.pid) == 1  # a zombie now
    assert capsys.readouterr().err.endswith("the workflow has ended, stopped\n")
    assert nothing_left(tmp_path)
    workflow.wait()
    assert start(tmp_path, "goes on", leave_after_s=600, workflow=workflow.pid) == 1  # no process any more
    assert nothing_left(tmp_path)


@pytest.mark.engine
def test_a_run_without_a_workflow_outlives_the_parent_of_its_launcher(tmp_path, monkeypatch, capsys):
    parent = subprocess.Popen(["sleep", "1"])
    monkeypatch.setattr("dlgs_bench.launch.launcher.os.getppid", lambda: parent.pid)
    assert start(tmp_path, "goes on", leave_after_s=600, workflow=os.getpid()) == 1
    assert capsys.readouterr().err.endswith("the workflow has ended, stopped\n")
    assert parent.wait() == 0
    assert start(tmp_path, "ends") == 0


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time in seconds that liveness sees, to be set."""
    now = [1000.0]
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.unit
def test_a_pause_of_the_whole_run_is_no_silence(tmp_path, clock):
    known = liveness.Ranks(tmp_path, 1)
    clock[0] += 50
    known.poll()
    clock[0] += 3600
    known.poll()
    assert not known.stalled(100)
    clock[0] += 49
    known.poll()
    assert not known.stalled(100)
    clock[0] += 1
    assert known.stalled(100)


@pytest.mark.unit
def test_the_slowest_rank_decides_and_silence_counts_from_the_launch(tmp_path, clock):
    known = liveness.Ranks(tmp_path, 3)
    for now, states in [(1010, {0: (3, 10), 1: (2, 10)}), (1050, {0: (4, 10)}), (1099, {0: (5, 10), 2: (9, 10)})]:
        clock[0] = now
        for rank, state in states.items():
            (tmp_path / f"rank{rank}.json").write_text(json.dumps(state))
        assert known.slowest() is None  # as long as one has not reported
        known.poll()
        assert not known.stalled(100)
    assert known.slowest() == (2, 10)
    clock[0] = 1110
    assert known.stalled(100) == "rank 1 reported no progress for 100 s, last at step 2 of 10"
    clock[0] = 1198  # rank 1's silence blocked the others: all are named
    assert [line[:6] for line in known.stalled(100).split("; ")] == ["rank 0", "rank 1", "rank 2"]
    late = liveness.Ranks(tmp_path / "nothing here", 1)
    clock[0] += 99
    assert not late.stalled(100)
    clock[0] += 1
    assert late.stalled(100) == "rank 0 reported no progress for 100 s, not one step since the launch"


@pytest.mark.unit
def test_each_beat_changes_the_heartbeat_and_needs_no_room_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(liveness, "HEARTBEAT_INTERVAL_S", 0.01)
    beat, seen = tmp_path / liveness.HEARTBEAT, set()
    with liveness.Heartbeat(tmp_path):
        first = beat.stat()
        assert until(lambda: seen.add(beat.read_text()) or len(seen) > 3)
        last = beat.stat()
    assert (first.st_ino, first.st_size, first.st_blocks) == (last.st_ino, last.st_size, last.st_blocks)
    assert len({text.split()[0] for text in seen}) == 1
    liveness.Heartbeat(tmp_path)
    assert beat.read_text().split()[0] not in {text.split()[0] for text in seen}


WAITS = """
import sys, time
from pathlib import Path
from dlgs_bench.launch.liveness import run_as_rank
run_as_rank(Path(sys.argv[1]), lambda folder: (folder / "waits").touch() or time.sleep(3600), float(sys.argv[2]))
"""


def waiting(folder: Path, leave_after_s: float) -> subprocess.Popen:
    """A rank that does nothing, and has begun to."""
    found = subprocess.Popen([sys.executable, "-c", WAITS, str(folder), f"{leave_after_s}"], cwd=ROOT)
    assert until((folder / "waits").exists)
    return found


@pytest.mark.engine
def test_a_rank_leaves_a_launch_for_another_one_and_says_nothing_into_its_folder(tmp_path):
    liveness.Heartbeat(tmp_path)
    rank = waiting(tmp_path, 3600)
    time.sleep(2 * liveness.HEARTBEAT_INTERVAL_S)
    assert rank.poll() is None
    liveness.Heartbeat(tmp_path)
    assert rank.wait(PATIENCE_S) == 1 and not (tmp_path / liveness.ERROR).exists()


@pytest.mark.engine
def test_a_rank_that_hears_nothing_says_why_it_leaves(tmp_path):
    liveness.Heartbeat(tmp_path)
    assert waiting(tmp_path, 1).wait(PATIENCE_S) == 1
    assert liveness.Ranks(tmp_path, 1).ended().startswith("the launcher sent no heartbeat for 1 s: it was stopped")


@pytest.mark.engine
@pytest.mark.slow
def test_a_rank_stays_while_there_are_heartbeats_though_it_was_stopped_itself(tmp_path):
    leave_after_s = 8
    with liveness.Heartbeat(tmp_path):
        rank = waiting(tmp_path, leave_after_s)
        for ask in (signal.SIGSTOP, signal.SIGCONT):
            rank.send_signal(ask)
            time.sleep(leave_after_s + 1)
        assert rank.poll() is None
        rank.kill()
        rank.wait()


@pytest.mark.unit
def test_engines_are_what_comm_has_and_their_environment_is_part_of_a_run():
    for name, engine in ENGINES.items():
        assert engine.name == name and (ROOT / "dlgs_bench" / "comm" / f"{name}_engine.py").exists()
        behind = fingerprint.behind_run(RunSpec("exchanges", cluster=Cluster(name)))
        assert ROOT / "dlgs_bench" / "engines.py" in behind
