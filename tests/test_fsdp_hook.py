"""FSDP2's hook: four processes, two replicas of two shards, against computations on one process."""

import re

import pytest
import torch
from fsdp_script import LR, STEPS, built, loss_of, observed
from support import documented
from world import World

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ENTRIES, LAYERS = sum(p.numel() for p in built().parameters()), len(list(built().parameters()))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What each rank observed."""
    with World("torch_dist", 4) as world:
        return world.run(observed, documented("FSDP2"), str(tmp_path_factory.mktemp("states")))


def mean_gradients(net, step: int, heads=(0, 1)) -> list[torch.Tensor]:
    """The mean over the four ranks, on this process; zeros for what a step does not use."""
    net.zero_grad()
    for rank in range(4):
        (loss_of(net, step, rank, heads) / 4).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()]


def test_what_compresses_nothing_is_data_parallel_sgd(ranks):
    net = built()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for step in range(STEPS):
        mean_gradients(net, step)
        optimizer.step()
    for found in ranks:
        for method, end in found["exact"].items():
            for p, theirs in zip(net.parameters(), end, strict=True):
                torch.testing.assert_close(theirs, p.detach(), rtol=1e-5, atol=1e-6, msg=method)


@pytest.mark.parametrize("kind", ["sparse", "bf16"])
def test_replicas_start_equal_and_stay_so_to_the_bit(ranks, kind):
    first = ranks[0][kind]
    for found in ranks[1:]:
        for when in ("start", "end"):
            assert all(map(torch.equal, first[when], found[kind][when]))
    assert not all(map(torch.equal, first["start"], first["end"]))
    assert all(map(torch.equal, first["start"], map(torch.Tensor.detach, built().parameters())))  # of replica 0
    assert set(first["residuals"]) == {torch.float32}


def test_nothing_dense_crosses_the_replicas(ranks):
    """Torch's own hybrid sharding all-reduces every shard; with the hook it all-reduces nothing."""
    for found in ranks:
        assert found["native dense"] >= ENTRIES // 2
        # Whether all gradients were finite, in all replicas and in all shards, and which layers were used.
        assert found["sparse"]["dense"] <= 2 + LAYERS
        assert 0 < found["sparse"]["sent"] < 4 * ENTRIES // 2


@pytest.mark.parametrize("frozen", [False, True])
def test_nothing_is_lost_where_layers_are_used_or_frozen_in_turns(ranks, frozen):
    net = built()
    total = [torch.zeros_like(p) for p in net.parameters()]
    for step in range(STEPS):
        for number, head in enumerate(net.heads):
            head.requires_grad_(not frozen or number == step % 2 or step == STEPS - 1)
        for part, gradient in zip(total, mean_gradients(net, step, (0, 1) if frozen else (step % 2,)), strict=True):
            part += gradient
    for rank, found in enumerate(ranks):
        for method in ("topk", "lags"):
            applied, left = found["in turns"][method, frozen]
            assert any(t.abs().max() > 0 for t in left if t.numel())
            for whole, sent, rest in zip(total, applied, left, strict=True):
                mine = (*whole.chunk(2), whole[:0])[rank % 2]
                torch.testing.assert_close(sent + rest, mine, rtol=1e-4, atol=1e-6, msg=method)


def test_momentum_is_the_same_whenever_optimizers_in_turns_clear_their_gradients(ranks):
    for found in ranks:
        assert all(map(torch.equal, *found["momentum in turns"]))


def test_a_forgotten_state_is_warned_of_once(ranks):
    for found in ranks:
        assert len(found["forgotten state"]) == 1


def test_a_step_that_is_not_finite_is_skipped_on_all_ranks_and_leaves_no_trace(ranks):
    for found in ranks:
        end, residuals, skipped = found["scaled"]
        assert skipped and residuals
        assert all(t.isfinite().all() for t in (*end, *residuals))
        assert all(map(torch.equal, end, ranks[0]["scaled"][0]))
        assert max(r.abs().max() for r in residuals) < 10  # not in units of the scale


def test_one_entry_that_is_not_finite_makes_the_step_bad_in_all_shards(ranks):
    for found in ranks:
        assert found["one bad entry"] == [(1, True), (1, False), (2, True)]


def test_gradients_that_autograd_returns_are_not_exchanged(ranks):
    for found in ranks:
        assert all(found["inner gradients"])


def test_a_backward_pass_that_fails_leaves_the_gradients_of_earlier_passes(ranks):
    for found in ranks:
        assert found["failed pass"] and all(found["failed pass"])


def test_a_layer_that_is_frozen_later_stays_as_it_is(ranks):
    for found in ranks:
        assert found["frozen later"] == [False, False, True, True]


def test_a_layer_without_entries_on_some_ranks_trains_or_is_refused_on_all_ranks(ranks):
    for found in ranks:
        (refused, _), (said, trained) = found["one output"]
        assert refused.startswith("model: shard 1 of 2 has no entry of the parameters that require a gradient; shard")
        assert not said and trained


def test_a_model_has_one_hook_which_goes_with_it(ranks):
    for found in ranks:
        second, gone = found["hooks of one model"]
        assert second == "first.weight: another hook exchanges its gradient already; call close of that hook first"
        assert gone


def test_the_documentation_says_how(ranks):
    assert [found["documented"] for found in ranks] == [1] * 4


def test_saved_and_loaded_is_never_stopped(ranks):
    for found in ranks:
        whole, resumed = found["resumed"]
        assert all(map(torch.equal, whole, resumed))


def test_a_closed_hook_leaves_the_model_as_it_was(ranks):
    for found in ranks:
        closed, plain = found["closed"]
        assert all(map(torch.equal, closed, plain))


def test_accumulated_gradients_are_the_sum_of_the_means(ranks):
    net = built()
    expected = [sum(pair) for pair in zip(mean_gradients(net, 0), mean_gradients(net, 1), strict=True)]
    for found in ranks:
        for habit, gradients in found["accumulated"].items():
            for mine, theirs in zip(expected, gradients, strict=True):
                torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-6, msg=habit)


def test_a_mistake_is_one_line_on_all_ranks(ranks):
    expected = {
        "two dimensions": r"fully_shard was given a mesh of 2 dimensions, so torch itself sums dense gradients",
        "plain": r"^model: Net is not an FSDP2 module; call fully_shard",
        "whole mesh": r"^replicas: a mesh of 2 dimensions is not a DeviceMesh of one dimension",
        "shards twice": r"^replicas: ranks \[\d, \d\] hold shards of one replica",
        "all-reduce off": r"set_requires_all_reduce\(False\) has no effect on the hook; call set_requires_grad",
        "other shard": r"^state: saved by shard \d, here is shard \d; load on every rank what it has saved",
        "unknown scaler": r"^scaler: a GradScaler that the hook does not have scales the loss",
    }
    for found in ranks:
        assert found["mistakes"].keys() == expected.keys()
        for case, line in found["mistakes"].items():
            assert re.search(expected[case], line) and "\n" not in line, case
