"""Engines: the same training, to the bit, on local threads, Horovod and torch.distributed."""

import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from conftest import METHODS, ROOT
from equal_worker import STEPS, parameters_after

from harness import plugins
from harness.comm.local import run_workers

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "horovod": lambda n: [BIN / "horovodrun", "-np", str(n), "--gloo", sys.executable],
    "torch_dist": lambda n: [BIN / "torchrun", "--standalone", "--nproc-per-node", str(n)],
}


def run_engine(
    engine: str, processes: int, folder: Path, environment: dict,
    methods: list[str], topologies: str = "allgather", steps: int = STEPS,
) -> list[dict]:  # fmt: skip
    """Per process: its parameters after training, by "<method> <topology>"."""
    target = folder / engine
    command = [*LAUNCHERS[engine](processes), ROOT / "tests" / "equal_worker.py", engine, target, ",".join(methods)]
    command += [topologies, str(steps)]
    settings = {"OMP_NUM_THREADS": "1", "HOROVOD_DISABLE_GROUP_FUSION": "1", "HOROVOD_CACHE_CAPACITY": "0"}
    done = subprocess.run(
        list(map(str, command)), env=environment | settings, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [torch.load(f"{target}.{rank}", weights_only=True) for rank in range(processes)]


@cache
def local_parameters(method: str, steps: int = STEPS) -> torch.Tensor:
    first, second = run_workers(2, lambda comm: parameters_after(comm, method, steps=steps))
    assert torch.equal(first, second)
    return first


@pytest.mark.parametrize("engine", LAUNCHERS)
def test_two_workers_end_with_the_same_bits_as_local_threads(engine, tmp_path, environment):
    torch.set_num_threads(1)
    for found in run_engine(engine, 2, tmp_path, environment, METHODS):
        for method in METHODS:
            assert torch.equal(found[f"{method} allgather"], local_parameters(method)), method


@pytest.mark.parametrize("engine", ["local", *LAUNCHERS])
def test_with_a_server_two_workers_end_with_the_same_bits_as_without(engine, tmp_path, environment):
    """On real processes and on threads; where weights are pulled, the server ends with them too."""
    torch.set_num_threads(1)
    methods, topologies, steps = [m for m in METHODS if plugins.one_sum(m)], ["ps-weights", "ps-sparse"], 4
    if engine == "local":
        runs = {(m, t): run_workers(3, partial(parameters_after, method=m, topology=t, steps=steps))
                for m in methods for t in topologies}  # fmt: skip
    else:
        found = run_engine(engine, 3, tmp_path, environment, methods, ",".join(topologies), steps)
        runs = {(m, t): [process[f"{m} {t}"] for process in found] for m in methods for t in topologies}
    for (method, topology), parameters in runs.items():
        for one in parameters if topology == "ps-weights" else parameters[:-1]:
            assert torch.equal(one, local_parameters(method, steps)), (method, topology)


def test_three_workers_agree_to_the_bit_and_across_engines_to_rounding(tmp_path, environment):
    methods = ["none", "dlgs"]
    runs = {engine: run_engine(engine, 3, tmp_path, environment, methods) for engine in LAUNCHERS}
    for method in methods:
        for workers in runs.values():
            key = f"{method} allgather"
            assert all(torch.equal(workers[0][key], w[key]) for w in workers)
    dense = [runs[engine][0]["none allgather"] for engine in LAUNCHERS]
    torch.testing.assert_close(*dense, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("size", [1, 3])
def test_every_rank_gets_what_each_has_for_it(size):
    """Rank r has r * s entries for rank s: none for the first, and none from it."""

    def work(comm):
        mine = [torch.full((comm.rank * to,), 10 * comm.rank + to) for to in range(size)]
        return comm.start_alltoall(mine).wait()

    for to, received in enumerate(run_workers(size, work)):
        assert [t.tolist() for t in received] == [[10 * by + to] * (by * to) for by in range(size)]


def test_local_workers_gather_different_lengths_in_rank_order():
    gathered = run_workers(3, lambda comm: comm.allgather(torch.full((comm.rank,), float(comm.rank))))
    for result in gathered:
        assert [t.tolist() for t in result] == [[], [1.0], [2.0, 2.0]]


def test_an_error_in_one_worker_reaches_the_caller():
    def work(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.barrier()

    with pytest.raises(KeyError, match="mine"):
        run_workers(2, work)
