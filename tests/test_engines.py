"""Engines: the same training, to the bit, on local threads, Horovod and torch.distributed, stopped or not."""

from functools import cache, partial

import pytest
import torch
from equal_worker import STEPS, parameters_after, trained
from support import CLASSES, METHODS, VARIANTS, every_engine, exchange_of, gradients, make, needs_horovod, one_step
from world import World

from dlgs_bench.comm.local import run_workers
from dlgs_bench.engines import ENGINES
from dlgs_bench.exchange import Sum
from dlgs_bench.topology import TOPOLOGIES

STOPPED = STEPS // 2
SERVERS = tuple(name for name, topology in TOPOLOGIES.items() if topology.servers)
SERVED = [m for m in METHODS if CLASSES[m].sum_kind]
# Together these send every kind of request: sums of vectors and of entries, maxima, gathers, rounds of known and of
# unknown lengths, a tree; and none for several steps.
FEW = ("none", "dlgs", "terngrad", "oktopk", "quantised", "gtopk", "cltk", "powersgd", "diloco")
FEW += ("dlgs-checked", "diloco-streaming")


def few_or_others(methods: list[str]) -> pytest.MarkDecorator:
    """The methods in ``FEW``; the other methods are slow."""
    few, others = ([m for m in methods if (m in FEW) == fast] for fast in (True, False))
    slow = pytest.param(others, id="others", marks=pytest.mark.slow)
    return pytest.mark.parametrize("methods", [pytest.param(few, id="few"), slow])


@cache
def local_parameters(method: str, workers: int = 2) -> list[torch.Tensor]:
    """The weights with which threads end, by rank. They are the same, unless a worker keeps a part of its own."""
    found = run_workers(workers, lambda comm: parameters_after(comm, method))
    assert method == "diloco-streaming" or all(torch.equal(found[0], other) for other in found)
    return found


def equals_local_threads(ranks: list[dict], servers: int = 0) -> None:
    """Whether the workers, and a server that workers pull the weights from, end with the bits of local threads."""
    for rank, states in enumerate(ranks):
        for key, state in states.items():
            method, topology, *_ = key.split()
            workers = len(ranks) - servers
            if rank < workers or TOPOLOGIES[topology].owner == "server":
                expected = local_parameters(method, workers)[rank % workers]
                assert torch.equal(state["parameters"], expected), key


def same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a if key != "elapsed_s")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def goes_on_as_if_never_stopped(world: World, methods: list[str], topologies: tuple[str, ...]) -> list[dict]:
    """The states after the last step of sessions without a stop, by rank. Sessions that are saved and loaded end equal.

    States come back to this process and go out again, so only what is saved can carry over.
    """
    halfway, ended = zip(*world.run(trained, methods, topologies, (STOPPED, STEPS)), strict=True)
    for before, (after,) in zip(ended, world.run(trained, methods, topologies, (STEPS,), halfway), strict=True):
        assert before.keys() == after.keys()
        for key in before:
            assert same(before[key], after[key]), key
    return list(ended)


@pytest.mark.engine
@every_engine
@few_or_others([*METHODS, *VARIANTS])
def test_two_workers_end_with_the_same_bits_as_local_threads_stopped_or_not(engine, methods, worlds):
    """The contract tests run on local threads; here every method runs on each real engine."""
    equals_local_threads(goes_on_as_if_never_stopped(worlds(engine), methods, ("allgather",)))


@pytest.mark.engine
@every_engine
def test_a_worker_and_a_server_end_with_the_same_bits_as_a_worker_alone(engine, worlds):
    equals_local_threads(goes_on_as_if_never_stopped(worlds(engine), ["none", "dlgs"], SERVERS), servers=1)


@pytest.mark.engine
@pytest.mark.slow
@every_engine
def test_two_workers_and_a_server_end_with_the_same_bits_as_without(engine):
    methods = [m for m in SERVED if engine == "torch_dist" or m in FEW]
    with World(engine, 3) as world:
        equals_local_threads(goes_on_as_if_never_stopped(world, methods, SERVERS), servers=1)


@pytest.mark.unit
@few_or_others(SERVED)
@pytest.mark.parametrize("topology", SERVERS)
def test_with_a_server_local_threads_end_with_the_same_bits_as_without(topology, methods):
    for method in methods:
        *workers, server = run_workers(3, partial(parameters_after, method=method, topology=topology))
        for one in [*workers, server] if TOPOLOGIES[topology].owner == "server" else workers:
            assert torch.equal(one, local_parameters(method)[0]), method


def asks_for_dense_sums(method: str) -> bool:
    """Whether a method asks for a dense sum in its first steps."""
    asked = []

    def work(comm):
        exchange = exchange_of(comm, make(method), gradients(0, 1)[0])
        start = exchange.transport.start

        def noted(request):
            asked.append(isinstance(request, Sum) and request.indices is None)
            return start(request)

        exchange.transport.start = noted
        for number, step in enumerate(gradients(0, STEPS), start=1):
            one_step(comm, exchange, step, number)

    run_workers(1, work)
    return any(asked)


@pytest.mark.engine
@few_or_others(METHODS)
def test_dense_sums_over_omnireduce_train_to_the_same_bits(methods, worlds):
    """Real processes run every method that asks for a dense sum. Two addends have one sum in any order."""
    asking = [m for m in methods if asks_for_dense_sums(m)]
    assert {"none", "powersgd"} <= set(asking) or {"cast", "randomk"} <= set(asking)
    equals_local_threads([states for (states,) in worlds("torch_dist").run(trained, asking, ["allgather omnireduce"])])


@needs_horovod
@pytest.mark.engine
@pytest.mark.slow
def test_three_workers_agree_to_the_bit_and_across_engines_to_rounding():
    dense = []
    for engine in ENGINES:
        with World(engine, 3) as world:
            first, *others = [states for (states,) in world.run(trained, ["none", "dlgs"])]
        for key, state in first.items():
            assert all(torch.equal(state["parameters"], other[key]["parameters"]) for other in others), key
        dense.append(first["none allgather"]["parameters"])
    torch.testing.assert_close(*dense, atol=1e-2, rtol=1e-2)
