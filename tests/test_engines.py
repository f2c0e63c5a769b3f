"""Engines: the same training, to the bit, on local threads, Horovod and torch.distributed."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from conftest import CLASSES, METHODS, ROOT
from equal_worker import STEPS, parameters_after

from harness.comm.local import run_workers
from harness.engines import ENGINES
from harness.topology import TOPOLOGIES

SERVERS = [name for name, topology in TOPOLOGIES.items() if topology.servers]


def run_engine(
    engine: str, processes: int, folder: Path, environment: dict,
    methods: list[str], topologies: Sequence[str] = ("allgather",), stops: tuple[int, ...] = (STEPS,), resume: str = "",
) -> list[dict]:  # fmt: skip
    """Per process: the state of its session at the last stop, by "<method> <topology>".

    The state at each stop lies in <folder>/<engine>-<stop>.<rank>; ``resume``: such a file's path without the rank.
    """
    target = folder / engine
    program = [sys.executable, str(ROOT / "tests" / "equal_worker.py"), engine, str(target)]
    program += [json.dumps(methods), json.dumps(topologies), json.dumps(stops), resume]
    done = subprocess.run(
        ENGINES[engine].command(processes, program), env=environment | ENGINES[engine].environment(threads=1),
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [torch.load(f"{target}-{stops[-1]}.{rank}", weights_only=True) for rank in range(processes)]


@cache
def local_parameters(method: str, steps: int = STEPS) -> torch.Tensor:
    first, second = run_workers(2, lambda comm: parameters_after(comm, method, steps=steps))
    assert torch.equal(first, second)
    return first


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_end_with_the_same_bits_as_local_threads(engine, tmp_path, environment):
    """The contract tests run on local threads; here every method runs once on each real engine."""
    torch.set_num_threads(1)
    for found in run_engine(engine, 2, tmp_path, environment, METHODS):
        for method in METHODS:
            assert torch.equal(found[f"{method} allgather"]["parameters"], local_parameters(method)), method


@pytest.mark.parametrize("engine", ["local", *ENGINES])
def test_with_a_server_two_workers_end_with_the_same_bits_as_without(engine, tmp_path, environment):
    """On real processes and on threads; where weights are pulled, the server ends with them too."""
    torch.set_num_threads(1)
    methods, steps = [m for m in METHODS if CLASSES[m].one_sum], 4
    if engine == "local":
        runs = {(m, t): run_workers(3, partial(parameters_after, method=m, topology=t, steps=steps))
                for m in methods for t in SERVERS}  # fmt: skip
    else:
        found = run_engine(engine, 3, tmp_path, environment, methods, SERVERS, (steps,))
        runs = {(m, t): [process[f"{m} {t}"]["parameters"] for process in found] for m in methods for t in SERVERS}
    for (method, topology), parameters in runs.items():
        for one in parameters if TOPOLOGIES[topology].owner == "server" else parameters[:-1]:
            assert torch.equal(one, local_parameters(method, steps)), (method, topology)


def test_three_workers_agree_to_the_bit_and_across_engines_to_rounding(tmp_path, environment):
    methods = ["none", "dlgs"]
    runs = {engine: run_engine(engine, 3, tmp_path, environment, methods) for engine in ENGINES}
    for method in methods:
        for workers in runs.values():
            key = f"{method} allgather"
            assert all(torch.equal(workers[0][key]["parameters"], w[key]["parameters"]) for w in workers)
    dense = [runs[engine][0]["none allgather"]["parameters"] for engine in ENGINES]
    torch.testing.assert_close(*dense, atol=1e-2, rtol=1e-2)
