"""The examples that say ``Run it with: ...`` run so on two processes, and do what they say. Others have own tests."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest
import torch
from support import PATIENCE_S, ROOT, exchange_steps, gradients, make, needs_horovod

from dlgs_bench.comm.local import run_workers

sys.path.insert(0, str(ROOT / "examples"))
import naive_exchange

MARKS = {"horovod_minimal": [needs_horovod]}
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


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in EXAMPLES])
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


@pytest.mark.unit
def test_every_other_example_is_named_in_a_test_of_its_own():
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    others = [path for path in EVERY if path.stem not in EXAMPLES]
    assert len(EXAMPLES) >= 3 and not [path.name for path in others if path.stem not in tests]


def naive(comm) -> Callable:
    """The function of the example, over a communicator instead of torch.distributed."""

    def all_gather(everyones: list[torch.Tensor], mine: torch.Tensor) -> None:
        for everyone, tensor in zip(everyones, comm.start_allgather(mine).wait(), strict=True):
            everyone.copy_(tensor)

    dist = SimpleNamespace(get_world_size=lambda: comm.world_size, all_gather=all_gather)
    return FunctionType(naive_exchange.exchange.__code__, vars(naive_exchange) | {"dist": dist})


@pytest.mark.unit
def test_the_naive_exchange_has_the_bits_of_the_compiled_one():
    entries, ratio, steps, workers = 5000, 0.01, 8, 2

    def work(comm):
        drawn = [gradient for (gradient,) in gradients(comm.rank, steps, sizes=[entries])]
        method = make("topk", ratio=ratio, selection="compiled")
        expected = exchange_steps(comm, method, [[gradient / workers] for gradient in drawn])
        exchange, residual = naive(comm), torch.zeros(entries)
        found = [exchange(gradient, residual, k=int(ratio * entries)) for gradient in drawn]
        assert all(torch.equal(one, other) for one, (other,) in zip(found, expected, strict=True))
        assert torch.equal(residual, method.residuals[0])
        return found

    one, other = run_workers(workers, work)
    assert all(torch.equal(a, b) and a.count_nonzero() > ratio * entries for a, b in zip(one, other, strict=True))
