"""What a hook holds goes when the hook goes, models with a hook can be copied, and nobody waits without end."""

import copy
import gc
from collections import OrderedDict, defaultdict, deque
from datetime import timedelta

import hook_lifecycle as script
import numpy as np
import pytest
import torch
import torch.distributed as dist
from support import every_engine, horovod_is_slow
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from dlgs_bench.exchange.finite import _copied
from dlgs_bench.hooks.checkpoints import attach
from dlgs_bench.hooks.ddp import DDPHook
from dlgs_bench.hooks.fsdp import FSDPHook
from dlgs_bench.hooks.local_steps import LocalSteps

pytestmark = pytest.mark.engine


@horovod_is_slow
@pytest.mark.parametrize("how", ["close", "with", "delete"])
def test_descriptors_and_threads_go_with_the_hook(engine, how, worlds):
    for early, late in worlds(engine).run(script.kept, engine, how):
        assert late[0] <= early[0] and late[1] <= early[1]


@horovod_is_slow
def test_a_closed_hook_leaves_the_model_as_it_was(engine, worlds):
    for closed, plain in worlds(engine).run(script.after_close, engine):
        assert torch.equal(closed, plain)


@horovod_is_slow
def test_a_hook_closes_without_a_warning(engine, worlds):
    assert set(worlds(engine).run(script.closed, engine)) == {""}


@horovod_is_slow
def test_a_model_has_one_hook_and_another_one_once_the_first_is_closed(engine, worlds):
    for second, found, only in worlds(engine).run(script.another, engine):
        assert second.endswith("call close of that hook first") and "\n" not in second
        assert torch.equal(found, only)


@every_engine
def test_every_rank_saves_and_loads_a_file(engine, worlds, tmp_path):
    for rank, (step, same, layers, cut) in enumerate(worlds(engine).run(script.in_files, engine, str(tmp_path))):
        assert (step, same) == (2, True)
        assert layers.startswith("state: layer 0, counted from the output, is (1,) in the state and (2,) here; load")
        assert cut.startswith(f"{tmp_path}/gradient_hook_{rank}.pt: the file cannot be read: ") and "\n" not in cut


@horovod_is_slow
def test_a_hook_lives_as_long_as_its_model(engine, worlds):
    first, second = worlds(engine).run(script.unnamed, engine)
    assert torch.equal(first, second)


@horovod_is_slow
def test_a_model_with_a_hook_can_be_copied_and_averaged(engine, worlds):
    for before, copied, average, trained, alone in worlds(engine).run(script.copied, engine):
        assert torch.equal(before, copied) and torch.equal(before, average[: len(before)])
        assert not torch.equal(before, trained) and not torch.equal(before, alone)


@every_engine
def test_what_one_worker_makes_otherwise_is_said_to_all_at_once(engine, worlds):
    first, second = worlds(engine).run(script.mistakes_of_one, engine)
    equal = {
        "ratio": "dgc.clip: 1.0 on rank 0 is not 2.0 on rank 1",
        "method": "method: 'topk' on rank 0 is not 'lags' on rank 1",
        "buckets": "buckets: [21] on rank 0 is not [",
        "scaler": "scaler: False on rank 0 is not True on rank 1",
        "order": "parameter 0: 'a.weight' on rank 0 is not 'b.weight' on rank 1",
    }
    for case, line in equal.items():
        assert first[case] == second[case] and first[case].startswith(line), case
        assert first[case].endswith("; give every worker the same arguments")
    own = {"unknown": "method: 'topkk' is not a method", "momentum": "optimizer: dgc applies momentum itself"}
    for case, line in own.items():
        assert first[case] == f"rank 1: {second[case]}" and second[case].startswith(line), case
    assert first["alike"] == second["alike"] == ""
    assert not any("\n" in line for line in (*first.values(), *second.values()))


def test_local_steps_of_another_length_are_said_to_all(worlds):
    for line in worlds("torch_dist").run(script.mistaken_local_steps):
        assert line == "diloco.local_steps: 3 on rank 0 is not 4 on rank 1; give every worker the same arguments"


def test_local_steps_refuse_ddp_between_their_workers_alone(worlds):
    """A worker of LocalSteps may itself be a group of processes, which train with DistributedDataParallel."""
    for found in worlds("torch_dist").run(script.wrapped_local_steps):
        assert found == {
            "around": "model: a DistributedDataParallel around it sums the same gradients; remove the outer wrapper",
            "within": "model: it contains a DistributedDataParallel (0), which sums the same gradients; remove this "
            "wrapper",
            "around, alone": "",
            "within, alone": "",
        }


@pytest.mark.parametrize("method", [pytest.param("none", marks=pytest.mark.slow), "topk"])
def test_a_late_worker_ends_at_the_timeout_of_the_models_group(method, worlds):
    first, second = worlds("torch_dist").run(script.late, method)
    assert script.TIMEOUT_S - 1 < first < script.LATE_S - 1
    assert script.LATE_S - 1 < second < script.LATE_S + 2 * script.TIMEOUT_S


@pytest.fixture
def one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=77))
    yield
    dist.destroy_process_group()


def test_every_hook_takes_the_timeout_of_the_models_group(one):
    """The test above shows that DDPHook's requests end at this timeout. The other two hooks have no such test."""
    model, plain = DistributedDataParallel(script.net()), script.net()
    sharded, mesh = script.net(), init_device_mesh("cpu", (1, 1), mesh_dim_names=("rep", "shard"))
    fully_shard(sharded, mesh=mesh["shard"])
    made = [
        DDPHook(model, torch.optim.SGD(model.parameters()), "none"),
        LocalSteps(plain, torch.optim.SGD(plain.parameters()), "diloco"),
        FSDPHook(sharded, mesh["rep"], torch.optim.SGD(sharded.parameters()), "none"),
    ]
    for hook in made:
        with hook:
            own = hook._comm._group._get_backend(torch.device("cpu"))
            assert own.options._timeout == timedelta(seconds=77), hook


def test_what_cannot_be_made_and_what_is_only_dropped_leave_no_process_group(one):
    def drop() -> None:
        model, plain = DistributedDataParallel(script.net()), script.net()
        for refused in (
            lambda: DDPHook(model, torch.optim.SGD(model.parameters()), "topk", ratio=7),
            lambda: LocalSteps(plain, torch.optim.SGD(plain.parameters()), "no such method"),
        ):
            with pytest.raises(ValueError):
                refused()
        LocalSteps(plain, torch.optim.SGD(plain.parameters()), "diloco")

    drop()
    gc.collect()
    assert list(dist.distributed_c10d._world.pg_map) == [dist.group.WORLD]


def test_weight_decay_comes_back_after_a_step_that_failed(one):
    def fail() -> None:
        raise ArithmeticError

    model = DistributedDataParallel(script.net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    hook = DDPHook(model, optimizer, "dgc", ratio=0.2)
    for look in (optimizer.state_dict, hook.close):
        with pytest.raises(ArithmeticError):
            optimizer.step(fail)
        look()
        assert optimizer.param_groups[0]["weight_decay"] == 0.01, look
    optimizer.step(lambda: torch.zeros(()))
    assert optimizer.param_groups[0]["weight_decay"] == 0.01

    def drop() -> None:
        dropped = DDPHook(DistributedDataParallel(model.module), optimizer, "dgc", ratio=0.2)
        with pytest.raises(ArithmeticError):
            optimizer.step(fail)
        assert optimizer.param_groups[0]["weight_decay"] == 0 and not dropped.closed

    drop()
    gc.collect()
    assert optimizer.param_groups[0]["weight_decay"] == 0.01
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("method", ["lags", "none"])
def test_the_state_after_an_interrupted_pass_is_the_state_before_it(one, method):
    """An emergency checkpoint must not lack what a bucket that was exchanged already has sent."""
    plain = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(3)))
    model = DistributedDataParallel(plain, bucket_cap_mb=0.01)
    options = {"ratio": 0.1} if method == "lags" else {}
    hook = DDPHook(model, torch.optim.SGD(plain.parameters(), lr=0.1), method, **options)
    for _ in range(3):
        model(torch.ones(2, 300)).sum().backward()
    before = copy.deepcopy(hook.state_dict())

    def interrupt(_: torch.Tensor) -> None:
        raise KeyboardInterrupt

    plain[0].weight.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(2, 300)).sum().backward()
    (step, state), (old_step, old) = (found["rank 0"][1:] for found in (hook.state_dict(), before))
    assert step == old_step == 3
    assert str(state) == str(old) and (method == "none" or state["residuals"])


def test_a_state_of_other_kinds_is_copied_and_given_back_as_it_was():
    own = {"counts": defaultdict(list, {1: [2]}), "array": np.arange(3), "queue": deque([1])}
    kept = _copied(own, {})
    own["counts"][1].append(3)
    own["array"][0], own["queue"][0] = 9, 9
    assert kept["counts"] == {1: [2]} and kept["counts"][5] == []
    assert kept["array"].tolist() == [0, 1, 2] and list(kept["queue"]) == [1]


def test_a_hook_whose_group_is_destroyed_says_so_and_a_new_one_works(one):
    plain = script.net()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    sync, model = LocalSteps(plain, sgd, "diloco", local_steps=1), DistributedDataParallel(script.net())
    with DDPHook(model, torch.optim.SGD(model.parameters()), "none"), sync:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for method, work in {"none": model(script.inputs(0, 0)).sum().backward, "diloco": sync.step}.items():
            with pytest.raises(ValueError, match=f"^destroy_process_group: {method} exchanged over a") as error:
                work()
            assert "\n" not in str(error.value)
    model = DistributedDataParallel(model.module)
    with DDPHook(model, torch.optim.SGD(model.parameters()), "none") as hook:
        script.train(model, hook._optimizers[0], 0)
        assert hook.step == 2


@pytest.mark.parametrize(
    ("wrapped", "local", "closure"), [(True, False, ()), (False, True, ()), (True, False, (None,))]
)
def test_a_hook_whose_wrapper_is_gone_says_so_in_the_next_step_until_it_is_closed(one, wrapped, local, closure):
    """A script wraps its model again, or trains on without a wrapper, and would have no exchange by the method."""
    plain = script.net()
    model, optimizer = DistributedDataParallel(plain), torch.optim.SGD(plain.parameters(), lr=0.1)
    hook = DDPHook(model, optimizer, "topk", ratio=0.2)
    script.train(model, optimizer, 0)
    if local:  # an epoch that ends while gradients accumulate
        with model.no_sync():
            model(script.inputs(0, 0)).sum().backward()
    del model
    gc.collect()
    model = DistributedDataParallel(plain) if wrapped else plain
    model(script.inputs(0, 0)).sum().backward()
    with pytest.raises(ValueError, match="DistributedDataParallel that topk was given no longer exists") as error:
        optimizer.step(*closure)  # Accelerate's optimizers give None
    assert "\n" not in str(error.value)
    hook.close()
    script.train(model, optimizer, 0)


def test_what_waits_for_a_frozen_layer_is_delivered_by_a_wrapper_that_leaves_out_no_layer(one):
    net = script.net()
    sgd, first = torch.optim.SGD(net.parameters(), lr=0.1), next(net.parameters())
    model = DistributedDataParallel(net, find_unused_parameters=True)
    with DDPHook(model, sgd, "lags", ratio=0.2) as hook:
        for step in range(4):
            net.zero_grad()
            first.requires_grad_(step == 0)
            model(script.inputs(step, 0)).sum().backward()
        state = hook.state_dict()
        assert hook._held[first].any()
    first.requires_grad_(True)
    net.zero_grad()
    model = DistributedDataParallel(net)
    with DDPHook(model, sgd, "lags", ratio=0.2) as hook:
        hook.load_state_dict(state)
        model(script.inputs(4, 0)).sum().backward()
        assert not hook._held


class Accelerator:
    """Keeps functions for its checkpoints as accelerate.Accelerator does."""

    def __init__(self) -> None:
        self.saves, self.loads = OrderedDict(), OrderedDict()

    def register_save_state_pre_hook(self, function) -> RemovableHandle:
        return self._kept(self.saves, function)

    def register_load_state_pre_hook(self, function) -> RemovableHandle:
        return self._kept(self.loads, function)

    def _kept(self, functions: OrderedDict, function) -> RemovableHandle:
        handle = RemovableHandle(functions)
        functions[handle.id] = function
        return handle


@pytest.mark.parametrize("how", ["close", "delete"])
def test_an_accelerator_saves_the_state_of_a_hook_until_the_hook_ends(one, how, tmp_path):
    model, accelerator = DistributedDataParallel(script.net()), Accelerator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = DDPHook(model, optimizer, "topk", ratio=0.2)
    attach(hook, accelerator)
    script.train(model, optimizer, 0)
    if how == "close":
        hook.close()
    else:
        model, plain = None, model.module
        del hook
        gc.collect()
        model = DistributedDataParallel(plain)
    assert not accelerator.saves and not accelerator.loads
    hook = DDPHook(model, optimizer, "lags", ratio=0.2)
    attach(hook, accelerator)
    for save in accelerator.saves.values():
        save([], [], tmp_path)
    script.train(model, optimizer, 0)
    for load in accelerator.loads.values():
        load([], tmp_path)
    assert hook.step == 0


def resumed(load: bool) -> DDPHook:
    """A step of a run whose optimizer was resumed, and whose hook was too if ``load``."""
    states: dict = {}
    for _ in range(2):
        model = DistributedDataParallel(script.net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        hook = DDPHook(model, optimizer, "topk", ratio=0.2)
        if states:
            optimizer.load_state_dict(states["optimizer"])
            if load:
                hook.load_state_dict(states["hook"])
        script.train(model, optimizer, 0)
        states = {"optimizer": optimizer.state_dict(), "hook": hook.state_dict()}
    return hook


def test_a_hook_that_was_not_resumed_with_its_optimizer_says_so_once(one, recwarn):
    resumed(load=True)
    assert not recwarn.list
    resumed(load=False)
    (warning,) = [w for w in recwarn.list if "topk starts without its state" in str(w.message)]
    assert "\n" not in str(warning.message)
