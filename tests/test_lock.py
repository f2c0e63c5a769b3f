"""Snakemake's lock outlives a killed workflow, and must not be taken from a living one."""

import json
import os
import subprocess
import sys

import pytest

from dlgs_bench.launch import lock

pytestmark = pytest.mark.unit


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """The file of this process in a folder whose lock it holds."""
    monkeypatch.chdir(tmp_path)
    lock.LOCKS.mkdir(parents=True)
    lock.hold()
    (holder,) = lock.HOLDERS.iterdir()
    return holder


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    "changed, taken",
    [
        ({}, False),
        ({"machine": "another"}, False),
        ({"machine": "another", "process": gone()}, False),
        ({"process": gone()}, True),
        ({"numbers": "pid:[1]", "process": gone()}, False),
        ({"numbers": "pid:[1]", "start": "before the machine was started anew"}, True),
        ({"process_start": "1"}, True),
        ({"start": "before the machine was started anew"}, True),
    ],
)
def test_a_lock_is_taken_away_when_its_holder_is_gone_and_only_then(changed, taken, locked):
    locked.write_text(json.dumps(json.loads(locked.read_text()) | changed))
    lock.free()
    assert lock.LOCKS.exists() != taken and locked.exists() != taken


@pytest.mark.parametrize("locks", [1, 2])
def test_a_holder_on_another_machine_is_forgotten_once_there_is_only_one_lock(locks, locked):
    other = locked.with_name("another.json")
    other.write_text(json.dumps(json.loads(locked.read_text()) | {"machine": "another"}))
    for number in range(locks):
        (lock.LOCKS / f"{number}.output.lock").touch()
    lock.hold()
    assert locked.exists() and other.exists() == (locks == 2)


def test_locks_stay_while_one_of_several_holders_lives(locked):
    """Two workflows can run in one folder, if their files differ. The second ends first."""
    other = locked.with_name("another.json")
    other.write_text(json.dumps(json.loads(locked.read_text()) | {"process": gone()}))
    lock.free()
    assert lock.LOCKS.exists() and locked.exists() and not other.exists()
    locked.write_text(json.dumps(json.loads(locked.read_text()) | {"process": gone()}))
    lock.free()
    assert not lock.LOCKS.exists()


@pytest.mark.parametrize("signed", [None, "", "[1, 2]", "{}", "[PID, 1.5]"])
def test_a_lock_that_nobody_signed_for_stays(signed, locked):
    locked.unlink() if signed is None else locked.write_text(signed.replace("PID", str(os.getpid())))
    lock.free()
    assert lock.LOCKS.exists()
