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
    """A folder whose lock this process holds."""
    monkeypatch.chdir(tmp_path)
    lock.LOCKS.mkdir(parents=True)
    lock.hold()


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
    lock.HOLDER.write_text(json.dumps(json.loads(lock.HOLDER.read_text()) | changed))
    lock.free()
    assert lock.LOCKS.exists() != taken and lock.HOLDER.exists() != taken


@pytest.mark.parametrize("signed", [None, "", "[1, 2]", "{}", "[PID, 1.5]"])
def test_a_lock_that_nobody_signed_for_stays(signed, locked):
    lock.HOLDER.unlink() if signed is None else lock.HOLDER.write_text(signed.replace("PID", str(os.getpid())))
    lock.free()
    assert lock.LOCKS.exists()
