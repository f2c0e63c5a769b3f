"""Engines: the same training, to the bit, on local threads, Horovod and torch.distributed, stopped or not."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from conftest import CLASSES, METHODS, PATIENCE_S, ROOT, exchange_of, gradients, make, one_step
from equal_worker import STEPS, parameters_after

from harness.comm.local import run_workers
from harness.engines import ENGINES
from harness.exchange import Sum
from harness.topology import TOPOLOGIES

STOPPED = STEPS // 2
SERVERS = tuple(name for name, topology in TOPOLOGIES.items() if topology.servers)
SERVED = [m for m in METHODS if CLASSES[m].one_sum]


def run_engine(
    engine: str, processes: int, folder: Path, environment: dict, methods: list[str],
    topologies: Sequence[str] = ("allgather",), stops: tuple[int, ...] = (STEPS,), resume: str = "",
) -> list[dict]:  # fmt: skip
    """Per process: the state of its session at the last stop, by "<method> <topology>".

    The state at each stop lies in <folder>/<engine>-<stop>.<rank>; ``resume``: such a file's path without the rank.
    """
    target = folder / engine
    program = [sys.executable, str(ROOT / "tests" / "equal_worker.py"), engine, str(target)]
    program += [json.dumps(methods), json.dumps(topologies), json.dumps(stops), resume]
    done = subprocess.run(
        ENGINES[engine].command(processes, program), env=environment | ENGINES[engine].environment(threads=1),
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [torch.load(f"{target}-{stops[-1]}.{rank}", weights_only=True) for rank in range(processes)]


@pytest.fixture(
    scope="module",
    params=[(engine, topologies) for engine in ENGINES for topologies in (("allgather",), SERVERS)],
    ids=lambda p: f"{p[0]}-{'server' if p[1] == SERVERS else 'allgather'}",
)
def trained(request, tmp_path_factory, environment) -> tuple[list[dict], list[dict]]:
    """What two workers have after their last step, never stopped and stopped half-way, with every method."""
    torch.set_num_threads(1)
    engine, topologies = request.param
    folder, (processes, methods) = tmp_path_factory.mktemp("engines"), (2, METHODS)
    if topologies == SERVERS:
        processes, methods = 3, SERVED
    run = partial(run_engine, engine, processes, folder, environment, methods, topologies)
    return run(stops=(STOPPED, STEPS)), run(resume=str(folder / f"{engine}-{STOPPED}"))


@cache
def local_parameters(method: str) -> torch.Tensor:
    first, second = run_workers(2, lambda comm: parameters_after(comm, method))
    assert torch.equal(first, second)
    return first


@pytest.mark.engine
def test_two_workers_end_with_the_same_bits_as_local_threads(trained):
    """The contract tests run on local threads; here every method runs on each real engine, without and with a server.

    Where weights are pulled, the server ends with them too.
    """
    for rank, states in enumerate(trained[0]):
        for key, state in states.items():
            method, topology = key.split()
            if rank < 2 or TOPOLOGIES[topology].owner == "server":
                assert torch.equal(state["parameters"], local_parameters(method)), key


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a if key != "elapsed_s")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.engine
def test_a_session_goes_on_in_other_processes_as_if_never_stopped(trained):
    for before, after in zip(*trained, strict=True):
        assert before.keys() == after.keys()
        for key in before:
            assert same(before[key], after[key]), key


@pytest.mark.unit
@pytest.mark.parametrize("topology", SERVERS)
def test_with_a_server_local_threads_end_with_the_same_bits_as_without(topology):
    torch.set_num_threads(1)
    for method in SERVED:
        *workers, server = run_workers(3, partial(parameters_after, method=method, topology=topology))
        for one in [*workers, server] if TOPOLOGIES[topology].owner == "server" else workers:
            assert torch.equal(one, local_parameters(method)), method


def asks_for_dense_sums(method: str) -> bool:
    """Whether it does in any of its first steps."""
    asked = []

    def work(comm):
        exchange = exchange_of(comm, make(method), gradients(0, 1)[0])
        start = exchange.answers.start

        def noted(request):
            asked.append(isinstance(request, Sum) and request.indices is None)
            return start(request)

        exchange.answers.start = noted
        for number, step in enumerate(gradients(0, STEPS), start=1):
            one_step(comm, exchange, step, number)

    run_workers(1, work)
    return any(asked)


@pytest.mark.engine
def test_dense_sums_over_omnireduce_train_to_the_same_bits(tmp_path, environment):
    """Every method that asks for one, on real processes; two addends have one sum, whatever their order."""
    torch.set_num_threads(1)
    methods, how = [m for m in METHODS if asks_for_dense_sums(m)], "allgather omnireduce"
    assert {"none", "powersgd"} <= set(methods)
    for found in run_engine("torch_dist", 2, tmp_path, environment, methods, (how,)):
        for method in methods:
            assert torch.equal(found[f"{method} {how}"]["parameters"], local_parameters(method)), method


@pytest.mark.engine
def test_three_workers_agree_to_the_bit_and_across_engines_to_rounding(tmp_path, environment):
    methods = ["none", "dlgs"]
    runs = {engine: run_engine(engine, 3, tmp_path, environment, methods) for engine in ENGINES}
    for method in methods:
        for workers in runs.values():
            key = f"{method} allgather"
            assert all(torch.equal(workers[0][key]["parameters"], w[key]["parameters"]) for w in workers)
    dense = [runs[engine][0]["none allgather"]["parameters"] for engine in ENGINES]
    torch.testing.assert_close(*dense, atol=1e-2, rtol=1e-2)
