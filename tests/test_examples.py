"""Every file in ``examples/`` runs on two processes, as its first lines say, and does what it says."""

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
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def run(command: str) -> str:
    """Run a command in the project with this Python's programs first; return what it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        shlex.split(command), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS_HOROVOD.get(name, [])) for name in EXAMPLES])
def test_an_example_runs_as_it_says(name):
    (command,) = re.findall(r"Run it with: (.*)", (ROOT / "examples" / f"{name}.py").read_text())
    printed = run(command)
    if "minimal" in name:
        first, last = map(float, re.findall(r"loss ([\d.]+)", printed))
        assert last < 0.8 * first
    else:
        assert [int(n) for n in re.findall(r"(\d+) entries arrived", printed)] and "step 4" in printed


def test_the_naive_exchange_has_the_bits_of_the_compiled_one():
    script = ROOT / "tests" / "examples_script.py"
    printed = run(f"torchrun --standalone --nproc-per-node 2 {script}")
    assert printed.split() == ["equal", "equal"]
