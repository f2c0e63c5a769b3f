"""Saved states: every rank gets its own from torch.distributed.checkpoint, and another number of workers shares them.

What the ranks do is in hook_states.py."""

import re
from contextlib import nullcontext
from dataclasses import dataclass, field

import hook_states as script
import pytest
import torch
from support import at, documented, exchange_steps, gradients, make
from test_hook_scripts import HOOKED, OPTIONS
from world import World

from dlgs_bench.comm.local import run_workers
from dlgs_bench.exchange import Bucket
from dlgs_bench.exchange.driver import LocalExchange
from dlgs_bench.exchange.feedback import ErrorFeedback
from dlgs_bench.exchange.transport import transport
from dlgs_bench.hooks import states
from dlgs_bench.topology import ALL_GATHER

METHODS = {name: OPTIONS[name] for name in HOOKED}
SUMS = {"residuals": "topk", "velocities": "dgc", "momenta": "demo", "errors": "loco"}
FEW = {name: OPTIONS[name] for name in ("topk", "dlgs", "oktopk", "powersgd", "dgc", "demo", "loco", "regtopk")}


@pytest.mark.engine
@pytest.mark.parametrize(
    "whole_hook, methods",
    [
        (False, {name: FEW[name] for name in ("topk", "powersgd")}),
        (True, FEW),
        pytest.param(True, METHODS, marks=pytest.mark.slow),
    ],
)
def test_every_rank_gets_its_own_state_and_goes_on_as_if_never_stopped(whole_hook, methods, worlds, tmp_path):
    for found in worlds("torch_dist").run(script.resumed, str(tmp_path), methods, whole_hook):
        for method, (whole, resumed) in found.items():
            assert all(map(torch.equal, whole, resumed)), method


@pytest.fixture(scope="module")
def saved(worlds, tmp_path_factory) -> tuple[str, list[dict]]:
    """The folder of two ranks' states, and what is in them, by rank and method."""
    folder = str(tmp_path_factory.mktemp("states"))
    return folder, worlds("torch_dist").run(script.saved, folder, FEW)


def sum_of(states: list[dict[int, torch.Tensor]]) -> list[torch.Tensor]:
    return [sum(state[index] for state in states) for index in sorted(states[0])]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_is_refused_or_shares_the_sum_of_the_residuals(workers, saved):
    folder, before = saved
    with World("torch_dist", workers) as world:
        ranks = world.run(script.redistributed, documented("Saved state"), folder, FEW, 2)
    assert all(name in before[0][method] for name, method in SUMS.items())
    for method in FEW:
        after = [found[method] for found in ranks]
        for rank, found in enumerate(after):
            if rank < 2:
                expected = f"state: {method} was saved by 2 worker(s), here are {workers}; give the states of all of"
            else:
                expected = "state: ['rank 0', 'rank 1'] is not the state of rank 2; load what this rank has saved"
            assert found["refused"].startswith(expected) and "\n" not in found["refused"]
            assert found["plainly"] == found["refused"] if workers == 1 else "Missing key" in found["plainly"]
            assert found["step"] == (0 if method in ("dlgs", "oktopk") else script.STOP), method
            assert re.match(r"state: ranks \[0\] of \[2\] workers are not all ranks", found["lacking"])
            assert all(map(torch.equal, found["weights"], after[0]["weights"]))
            assert all(weight.isfinite().all() for weight in found["weights"])
        for name in SUMS.keys() & before[0][method].keys():
            theirs = sum_of([states[method][name] for states in before])
            assert any(total.abs().max() > 1e-3 for total in theirs)
            for how in ("state", "from files"):
                for ours, total in zip(sum_of([found[how][name] for found in after]), theirs, strict=True):
                    torch.testing.assert_close(ours, total, rtol=1e-6, atol=1e-6, msg=f"{method}, {name}, {how}")


@pytest.mark.engine
def test_a_state_that_one_rank_alone_loads_is_refused_on_all_ranks(worlds):
    for line in worlds("torch_dist").run(script.one_rank_loads):
        assert line == "hook.step: 3 on rank 0 is not 0 on rank 1; load the hook's state on every worker, or on none"


@dataclass
class Counting(ErrorFeedback):
    """A method with a field of its own that is not a tensor."""

    state = ("drawn",)
    equal_state = ("shared",)

    seed: int = 0
    drawn: int = field(default=0, init=False)
    shared: dict = field(default_factory=dict, init=False)


@pytest.mark.unit
def test_the_declarations_of_a_method_decide_what_becomes_of_its_state():
    def save(comm) -> dict:
        method = Counting(seed=3)
        method.drawn, method.shared[0], method.residuals[0] = 5, torch.ones(2), torch.full((2,), comm.rank + 1.0)
        return states.saved_state(
            comm, states.identity_of("counting", method, comm, [2], [(2,)]), 7, method.state_dict()
        )

    def load(comm) -> tuple[int, dict]:
        method = Counting(seed=3)
        identity = states.identity_of("counting", method, comm, [2], [(2,)])
        return states.loaded_state(first | second, comm, identity, method, redistribute=True)

    first, second = run_workers(2, save)
    ((step, state),) = run_workers(1, load)
    assert (step, state["drawn"]) == (7, 0) and state.keys() == {"drawn", "shared", "residuals"}
    assert torch.equal(state["shared"][0], torch.ones(2)) and torch.equal(state["residuals"][0], torch.full((2,), 3.0))


@pytest.mark.unit
def test_local_steps_of_fewer_workers_keep_what_was_trained_since_shared_weights_were_adopted():
    """The exchange of step 10 is adopted at step 13. The state is of step 18: five steps were made since then."""
    options = {"local_steps": 10, "delay": 3, "outer_lr": 1.0, "outer_momentum": 0.0}

    def train(comm, method, weights: torch.Tensor, first: int, last: int) -> list[float]:
        """The weights after each step; a step subtracts 1."""
        buckets = [Bucket(0, torch.zeros_like(weights))]
        requests = transport(ALL_GATHER, comm)
        exchange = LocalExchange(method, [(0, 1)], buckets, requests, lambda label: nullcontext(), weights)
        after = []
        for step in range(first, last + 1):
            exchange.begin(at(step, comm.rank, comm.world_size))
            weights -= 1
            exchange.updated()
            after.append(weights.item())
        return after

    def save(comm) -> tuple[dict, float]:
        method = make("diloco", **options)
        after = train(comm, method, torch.zeros(1), 1, 18)
        return states.saved_state(
            comm, states.identity_of("diloco", method, comm, [1], [(1,)]), 18, method.state_dict()
        ), after[-1]

    def load(comm) -> list[float]:
        method = make("diloco", **options)
        identity = states.identity_of("diloco", method, comm, [1], [(1,)])
        step, kept = states.loaded_state(first | second, comm, identity, method, redistribute=True)
        method.load_state_dict(kept)
        return train(comm, method, torch.tensor([weight]), step + 1, 24)

    (first, weight), (second, _) = run_workers(2, save)
    assert weight == -15.0
    # At step 23, the weights of step 20 are adopted.
    assert run_workers(1, load) == [[-16.0, -17.0, -18.0, -19.0, -17.0, -18.0]]


@pytest.mark.unit
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name, options", [("loco", {}), ("onebit_adam", {"warmup_steps": 1})])
def test_the_residuals_of_sums_are_kept_with_another_number_of_workers(name, options, workers):
    """They are as large as the rounding error of the aggregate."""
    size = 1000

    def save(comm) -> tuple[dict, torch.Tensor]:
        method = make(name, **options)
        exchange_steps(comm, method, gradients(comm.rank, 4, (size,)))
        identity = states.identity_of(name, method, comm, [size], [(size,)])
        return states.saved_state(comm, identity, 4, method.state_dict()), method.sum_errors[0]

    def load(comm) -> torch.Tensor:
        method = make(name, **options)
        identity = states.identity_of(name, method, comm, [size], [(size,)])
        _, kept = states.loaded_state(first | second, comm, identity, method, redistribute=True)
        method.load_state_dict(kept)
        after = method.sum_errors[0].clone()
        exchange_steps(comm, method, gradients(comm.rank, 1, (size,)), first=5)
        return after

    (first, before), (second, other) = run_workers(2, save)
    assert before.norm() > 0
    assert torch.equal(torch.cat(run_workers(workers, load)), torch.cat([before, other]))
