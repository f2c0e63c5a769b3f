"""The examples that say ``Run it with: ...`` run so on two processes, and do what they say. Others have own tests."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, needs_horovod

pytestmark = pytest.mark.engine

NEEDS_HOROVOD = {"horovod_minimal": [needs_horovod]}
EVERY = sorted((ROOT / "examples").glob("*.py"))
COMMAND = re.compile(r"Run it with: (.*)")
EXAMPLES = [path.stem for path in EVERY if COMMAND.search(path.read_text(encoding="utf-8"))]


def run(command: str) -> str:
    """Run a command in the project with this Python's programs first; return what it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    call = ["env", *shlex.split(command)]  # which also sets the variables before the program's name
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS_HOROVOD.get(name, [])) for name in EXAMPLES])
def test_an_example_runs_as_it_says(name):
    (command,) = COMMAND.findall((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"))
    printed = run(command)
    if "minimal" in name:
        first, last = map(float, re.findall(r"loss ([\d.]+)", printed))
        assert last < 0.8 * first
    else:
        shown = "\n".join(printed.splitlines()[:2])
        assert "20 entries arrived" in shown and "step 4" in printed
        assert shown in (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def test_every_other_example_is_named_in_a_test_of_its_own():
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    others = [path for path in EVERY if path.stem not in EXAMPLES]
    assert len(EXAMPLES) >= 3 and not [path.name for path in others if path.stem not in tests]


def test_the_naive_exchange_has_the_bits_of_the_compiled_one():
    printed = run("PYTHONPATH=. torchrun --standalone --nproc-per-node 2 tests/examples_script.py")
    assert printed.split() == ["equal"]
