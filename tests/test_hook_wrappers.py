"""Hooks where torch wraps the model or its groups: the same weights as in the ordinary way, or one line."""

from collections.abc import Callable

import hook_wrappers as script
import pytest
import torch
import torch.distributed as dist
from support import NEEDS, every_engine, needs_horovod
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.hooks.ddp import DDPHook

METHODS = {"none": {}, "topk": {"ratio": 0.2}, "powersgd": {}}


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor], where: str) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6, msg=where)


def alike(worlds, train: Callable, equal: Callable) -> bool:
    """Whether ``train(comm, True)`` and ``train(comm, False)`` give every rank equal weights."""
    one, other = (worlds("torch_dist").run(train, way) for way in (True, False))
    return all(all(map(equal, *weights)) for weights in zip(one, other, strict=True))


def train_alike(ranks: list[dict], engine: str, where: str) -> None:
    """Whether every rank has the weights of the ordinary way in each way."""
    for found in ranks:
        for way in script.WAYS[engine]:
            close(found[way], found["plain"], f"{where}, {way}")


@pytest.mark.engine
@pytest.mark.slow
@every_engine
@pytest.mark.parametrize("method", METHODS)
def test_compiled_checkpointed_and_static_models_train_as_plain_ones(engine, method, worlds):
    train_alike(worlds(engine).run(script.wrapped, engine, method, METHODS[method]), engine, method)


@pytest.mark.engine
@pytest.mark.slow
def test_local_steps_within_a_compiled_step_are_the_same(worlds):
    assert alike(worlds, script.local_steps_compiled, torch.allclose)


@pytest.mark.engine
def test_local_steps_are_the_same_where_torch_checks_every_collective(worlds):
    """DDP itself cannot be constructed in this mode: torch 2.11 crashes on Gloo, without any hook."""
    assert alike(worlds, script.watched_local_steps, torch.equal)


@pytest.mark.engine
def test_a_hook_is_the_same_where_torch_checks_every_collective(worlds):
    assert alike(worlds, script.watched_ddp, torch.equal)


@pytest.mark.engine
@pytest.mark.slow
@every_engine
def test_a_compiled_backward_pass_is_refused_by_torch_or_by_the_hook(engine, worlds):
    expected = {
        "torch_dist": "Compiled autograd is not compatible with C++ DDP Reducer",
        "horovod": "torch._dynamo.config.compiled_autograd: a compiled backward pass is not possible with a hook",
    }
    for line in worlds(engine).run(script.compiled_backward, engine):
        assert line.startswith(expected[engine]) and "\n" not in line


@pytest.mark.engine
@every_engine
def test_reentrant_checkpointing_of_the_last_layers_is_refused_where_gradients_come_from_autograd(engine, worlds):
    for line in worlds(engine).run(script.reentrant_to_the_end, engine):
        if engine == "horovod":
            assert line.startswith("checkpoint: use_reentrant=True is not possible") and "\n" not in line
        else:
            assert line == ""


@pytest.mark.engine
@needs_horovod
def test_reentrant_checkpointing_of_shared_layers_is_refused_by_name(worlds):
    for line in worlds("horovod").run(script.reentrant_shared, "horovod"):
        assert line.startswith("blocks.0.") and "\n" not in line
        assert "backward computes its gradient in several parts" in line and "give use_reentrant=False" in line


@pytest.mark.engine
@pytest.mark.parametrize("unused", [False, True])
def test_uneven_inputs_in_join_are_those_of_plain_ddp(unused, worlds):
    run = worlds("torch_dist").run
    plain = run(script.joined, None, {}, unused)
    for method, options in {"none": {}, "topk": {"ratio": 1.0}}.items():
        for ours, theirs in zip(run(script.joined, method, options, unused), plain, strict=True):
            close(ours, theirs, f"{method}, unused {unused}")
    first, second = run(script.joined, "topk", {"ratio": 0.2}, unused)
    assert all(map(torch.equal, first, second))


@pytest.mark.engine
def test_a_mean_over_the_workers_that_have_inputs_is_refused_on_all_ranks(worlds):
    for line in worlds("torch_dist").run(script.joined_with_a_smaller_mean):
        assert line.startswith("join: divide_by_initial_world_size=False is not possible") and "\n" not in line


def after_join() -> list[torch.Tensor]:
    """The weights of rank 1, on this process: rank 0 has one batch, and zeros count for it afterwards."""
    net = script.Blocks()
    optimizer = script.sgd(net)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(0 if step == 0 else 1, 2):
            (net(script.batch(step, rank)) / 2).backward()
        optimizer.step()
    return script.weights(net)


@pytest.mark.engine
@pytest.mark.parametrize("engine", [pytest.param("horovod", marks=NEEDS["horovod"])])
@pytest.mark.parametrize("method", METHODS)
def test_horovods_join_counts_zeros_without_compression_and_is_refused_otherwise(engine, method, worlds):
    (first, _), (second, ours) = worlds(engine).run(script.joined_horovod, method, METHODS[method])
    assert first == ""  # it waits in hvd.join, which returns
    if method == "none":
        assert second == ""
        close(ours, after_join(), method)
    else:
        assert second.startswith(f"hvd.join: {method} needs every worker in every pass; ") and "\n" not in second


@pytest.mark.engine
def test_a_group_of_some_processes_trains_by_itself_and_saves_under_global_ranks(worlds):
    for rank, (ours, alone, keys) in enumerate(worlds("torch_dist").run(script.in_groups)):
        close(ours, alone, f"rank {rank}")
        assert keys == [f"rank {rank}"]


@pytest.mark.unit
def test_the_python_reducer_is_refused_in_one_line():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
            model = DistributedDataParallel(script.Blocks())
        with pytest.raises(ValueError, match=r"^torch\._dynamo\.config\.optimize_ddp: python_reducer is not") as error:
            DDPHook(model, script.sgd(model), "none")
        assert "\n" not in str(error.value)
    finally:
        dist.destroy_process_group()
