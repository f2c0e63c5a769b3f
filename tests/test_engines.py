"""Engines: the same training, to the bit, on local threads, Horovod and torch.distributed."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import METHODS, ROOT
from equal_worker import parameters_after

from harness.comm.local import run_workers

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "horovod": lambda n: [BIN / "horovodrun", "-np", str(n), "--gloo", sys.executable],
    "torch_dist": lambda n: [BIN / "torchrun", "--standalone", "--nproc-per-node", str(n)],
}


def run_engine(engine: str, workers: int, folder: Path, environment: dict, methods: list[str]) -> list[dict]:
    target = folder / engine
    command = [*LAUNCHERS[engine](workers), str(ROOT / "tests" / "equal_worker.py"), engine, target, ",".join(methods)]
    settings = {"OMP_NUM_THREADS": "1", "HOROVOD_DISABLE_GROUP_FUSION": "1", "HOROVOD_CACHE_CAPACITY": "0"}
    done = subprocess.run(
        list(map(str, command)), env=environment | settings, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [torch.load(f"{target}.{rank}", weights_only=True) for rank in range(workers)]


@cache
def local_parameters(method: str) -> torch.Tensor:
    first, second = run_workers(2, lambda comm: parameters_after(comm, method))
    assert torch.equal(first, second)
    return first


@pytest.mark.parametrize("engine", LAUNCHERS)
def test_two_workers_end_with_the_same_bits_as_local_threads(engine, tmp_path, environment):
    torch.set_num_threads(1)
    for found in run_engine(engine, 2, tmp_path, environment, METHODS):
        for method in METHODS:
            assert torch.equal(found[method], local_parameters(method)), method


def test_three_workers_agree_to_the_bit_and_across_engines_to_rounding(tmp_path, environment):
    methods = ["none", "dlgs"]
    runs = {engine: run_engine(engine, 3, tmp_path, environment, methods) for engine in LAUNCHERS}
    for method in methods:
        for workers in runs.values():
            assert all(torch.equal(workers[0][method], w[method]) for w in workers)
    torch.testing.assert_close(runs["horovod"][0]["none"], runs["torch_dist"][0]["none"], atol=1e-2, rtol=1e-2)


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
