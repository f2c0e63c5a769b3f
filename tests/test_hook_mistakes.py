"""Mistakes around a hook or the probe that training hides: other wrappers, other optimizers, layers frozen too late.

Each ends in one line before anything is exchanged. A legal script that resembles the mistake trains. test_hook_scripts
makes the same mistakes on two ranks, and on Horovod.
"""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.exchange.plugin import method_class
from dlgs_bench.hooks.ddp import DDPHook
from dlgs_bench.hooks.fsdp import FSDPHook
from dlgs_bench.hooks.hook import refuse_large
from dlgs_bench.hooks.local_steps import LocalSteps
from dlgs_bench.probe import record

pytestmark = pytest.mark.unit
OUTER = "model: a DistributedDataParallel around it sums the same gradients; remove the outer wrapper"


@pytest.fixture(autouse=True, scope="module")
def one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def sgd(*models: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def hooked(model: nn.Module, optimizer=None, method: str = "topk") -> DDPHook:
    options = {} if method == "lossless" else {"ratio": 0.5}
    return DDPHook(model, optimizer or sgd(model), method, **options)


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def refused(call: Callable[[], object]) -> str:
    """The one-line error of ``call``."""
    with pytest.raises(ValueError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def recorded(model: nn.Module, trained: nn.Module, path) -> None:
    with record(model, sgd(model), path):
        backward(trained)


@pytest.mark.parametrize("name", ["", "0"])
def test_ddp_within_the_model_is_refused_before_training(name, tmp_path):
    model = nn.Sequential(DistributedDataParallel(nn.Linear(3, 4)), nn.Linear(4, 1)) if name else net()
    inner = model if name else DistributedDataParallel(model)
    model = DistributedDataParallel(inner)
    which = f" ({name})" if name else ""
    line = f"model: it contains a DistributedDataParallel{which}, which sums the same gradients; remove this wrapper"
    assert refused(lambda: hooked(model)) == line
    assert refused(lambda: recorded(model, model, tmp_path / "profile.json")) == f"record: {line}"


def test_ddp_around_the_model_is_refused_in_the_forward_pass(tmp_path):
    model = DistributedDataParallel(net())
    before = DistributedDataParallel(model)
    hook = hooked(model)
    outers = (before, DistributedDataParallel(model), DistributedDataParallel(nn.Sequential(model)))
    for outer in outers:  # named, since torch crashes if one is collected while a backward pass runs
        assert refused(lambda outer=outer: backward(outer)) == OUTER
    assert hook.step == 0 and all(p.grad is None for p in model.parameters())
    backward(model)
    assert hook.step == 1
    for given in (net(), DistributedDataParallel(net())):
        outer = DistributedDataParallel(given)
        line = refused(lambda given=given, outer=outer: recorded(given, outer, tmp_path / "profile.json"))
        assert line == "record: model: a DistributedDataParallel around it is trained; give record that model"


def test_ddp_within_a_sharded_model_is_refused_and_around_it_torch_raises_an_error():
    mesh, model = init_device_mesh("cpu", (1, 1), mesh_dim_names=("rep", "shard")), net()
    inner = DistributedDataParallel(net())
    for one in (model, inner):
        fully_shard(one, mesh=mesh["shard"])
    line = "model: it contains a DistributedDataParallel, which sums the same gradients; remove this wrapper"
    assert refused(lambda: FSDPHook(inner, mesh["rep"], sgd(inner), "topk", ratio=0.5)) == line
    FSDPHook(model, mesh["rep"], sgd(model), "topk", ratio=0.5)
    with pytest.raises(NotImplementedError):
        DistributedDataParallel(model)


def test_a_mesh_of_replicas_and_tensor_parallelism_are_told_apart():
    mesh = init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=("rep", "shard", "tensor"))
    for line, given in {
        "fully_shard was given a mesh of 2 dimensions, so torch itself": mesh["rep", "shard"],
        "the parameter is also sharded by tensor parallelism, which FSDPHook does not support": mesh["shard"],
    }.items():
        model = net()
        if given.ndim == 1:
            parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=given)
        said = refused(lambda model=model: FSDPHook(model, mesh["rep"], sgd(model), "topk", ratio=0.5))
        assert said.startswith(f"0.weight: {line}")


class Student(nn.Module):
    """A network that is trained by the outputs of another one, which is not a part of it."""

    def __init__(self, teacher: nn.Module):
        super().__init__()
        self.net, self.teacher = net(), [teacher]

    def forward(self, inputs):
        return self.net(inputs) - self.teacher[0](inputs)


def test_ddp_around_other_parameters_is_legal():
    model, parts = DistributedDataParallel(net()), nn.Sequential(DistributedDataParallel(nn.Linear(3, 4)), net()[2])
    hook = hooked(model)
    backward(DistributedDataParallel(Student(model)))
    assert hook.step == 1
    ignored = [f"0.{name}" for name, _ in parts[0].named_parameters()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(parts, ignored)
    outer = DistributedDataParallel(parts)
    inner_hook, outer_hook = hooked(parts[0]), hooked(outer)
    backward(outer)
    assert inner_hook.step == outer_hook.step == 1


def test_a_copy_of_a_model_with_a_hook_may_be_wrapped():
    model, plain = DistributedDataParallel(net()), net()
    hook, _sync = hooked(model), LocalSteps(plain, sgd(plain), "diloco")
    for copied in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain)), copy.deepcopy(model)):
        backward(DistributedDataParallel(copied))
        assert all(p.grad is not None for p in copied.parameters())
    assert hook.step == 0


def test_a_scripted_model_may_have_a_hook():
    model = torch.jit.script(net())
    optimizer = sgd(model)
    with LocalSteps(model, optimizer, "diloco", local_steps=1) as sync:
        backward(model)
        optimizer.step()
        sync.step()
        assert sync.steps == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_gradients_of_passes_outside_the_hooks_model_are_refused_in_the_first_step(wrapped):
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    hook = hooked(model, optimizer)
    called = DistributedDataParallel(model.module) if wrapped else model.module
    before = [p.detach().clone() for p in model.parameters()]
    backward(called)
    line = "model: the first gradients come from passes outside the model of the hook"
    assert refused(optimizer.step).startswith(line)
    assert hook.step == 0 and all(map(torch.equal, before, model.parameters()))


def twice_forward(model: nn.Module) -> None:
    first, second = (model(torch.ones(2, 3)).sum() for _ in range(2))
    first.backward()
    second.backward()


def twice_backward(model: nn.Module) -> None:
    loss = model(torch.ones(2, 3)).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def outside(model: nn.Module) -> None:
    backward(model.module)


@pytest.mark.parametrize("habit", [twice_forward, twice_backward, outside])
@pytest.mark.parametrize("settings", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_gradients_that_ddp_does_not_exchange_are_refused_in_every_step(habit, settings):
    model = DistributedDataParallel(net(), **settings)
    optimizer = sgd(model)
    hook = hooked(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    optimizer.zero_grad()
    habit(model)
    line = "backward: its gradients were not exchanged, since DistributedDataParallel exchanges only the first backward"
    assert refused(optimizer.step).startswith(line)
    optimizer.zero_grad()
    optimizer.step()
    backward(model)
    optimizer.step()
    assert hook.step >= 3


def without_optimizer(method: str, optimizers: int) -> DDPHook:
    """Train a model whose first layer is in no optimizer of the hook, and in another one if there are two."""
    model = DistributedDataParallel(net())
    steppers = [sgd(model.module[layer]) for layer in (2, 0)][:optimizers]
    hook = hooked(model, steppers[0], method)
    for _ in range(3):
        for optimizer in steppers:
            optimizer.zero_grad()
        backward(model)
        for optimizer in steppers:
            optimizer.step()
    return hook


def test_a_layer_that_no_optimizer_has_is_named_once(recwarn):
    line = "0.weight: it is in no optimizer that {} was given, so its gradient takes part in exchanges and is not"
    assert without_optimizer("topk", 1).step == without_optimizer("topk", 2).step == 3
    (warning,) = [str(one.message) for one in recwarn.list if "optimizer" in str(one.message)]
    assert warning == f"{line.format('topk')} applied; freeze it, or give the hook its optimizer"
    assert refused(lambda: without_optimizer("dgc", 1)).replace("bias", "weight").startswith(line.format("dgc"))
    assert without_optimizer("dgc", 2).step == 3


def test_gradients_that_are_exchanged_later_or_discarded_are_legal():
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    hook = hooked(model, optimizer)
    backward(model)
    optimizer.step()
    with model.no_sync():  # gradients of this pass are exchanged in the next pass
        twice_backward(model)
    backward(model)
    optimizer.step()
    twice_forward(model)
    backward(model)
    optimizer.step()
    kept = [p.grad for p in model.parameters()]
    optimizer.zero_grad()
    outside(model)
    for p, gradient in zip(model.parameters(), kept, strict=True):
        p.grad = gradient
    optimizer.step()
    with model.no_sync():  # the script steps on its own gradients
        twice_forward(model)
    optimizer.step()
    with torch.no_grad():
        model(torch.ones(2, 3))
    optimizer.step()
    assert hook.step == 4


def test_a_first_step_on_a_local_pass_or_with_a_closure_is_legal():
    model = DistributedDataParallel(net())
    optimizer = sgd(model)
    hook = hooked(model, optimizer)
    with model.no_sync():
        backward(model)
    optimizer.step()
    assert hook.step == 0
    other = DistributedDataParallel(net())
    backward(other)
    closing, hook = sgd(other), hooked(other)
    closing.step(lambda: backward(other))
    assert hook.step == 1


def test_layers_that_are_frozen_after_wrapping_are_refused_by_name():
    model = DistributedDataParallel(net())
    hook = hooked(model)
    model.module[0].requires_grad_(False)
    line = "0.bias: it was frozen after the model was wrapped, so DistributedDataParallel would wait for its gradient"
    assert refused(lambda: backward(model)).startswith(line)
    with torch.no_grad():
        model(torch.ones(2, 3))
    model.module[0].requires_grad_(True)
    backward(model)
    assert hook.step == 1


@pytest.mark.parametrize("unfreeze", [False, True])
def test_layers_that_are_frozen_or_unfrozen_between_wrapper_and_hook_are_refused(unfreeze):
    plain = net()
    plain[0].requires_grad_(not unfreeze)
    model = DistributedDataParallel(plain)
    plain[0].requires_grad_(unfreeze)
    line = "0.weight: it was frozen or unfrozen after the model was wrapped, which DistributedDataParallel does not"
    assert refused(lambda: hooked(model)).startswith(line)


@pytest.mark.parametrize("method", ["diloco", "sparseloco"])
def test_a_layer_that_is_frozen_after_local_steps_were_made_is_named(method):
    """The outer momentum or the residual would still move it."""
    model = net()
    sync = LocalSteps(model, optimizer := sgd(model), method, local_steps=1)
    for step in range(2):
        model[0].requires_grad_(step == 0)
        backward(model)
        optimizer.step()
        if step == 0:
            sync.step()
    assert ": it was frozen after LocalSteps was made, and " in refused(sync.step)
    sync.close()


@pytest.mark.parametrize("view", [False, True])
def test_a_layer_that_is_frozen_within_an_accumulation_is_named(view):
    """Its gradient of the pass in no_sync would stay on this worker, and an optimizer would apply it."""
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model = DistributedDataParallel(layers, find_unused_parameters=True, gradient_as_bucket_view=view)
    _hook = hooked(model)
    backward(model)
    model.zero_grad()
    with model.no_sync():
        backward(model)
    layers[0].requires_grad_(False)
    assert refused(lambda: backward(model)).startswith("0.weight: it was frozen before its gradient was exchanged")


def test_a_part_of_the_model_in_another_dtype_is_refused_if_ddp_finds_unused_parameters():
    layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    _hook = hooked(model)
    layers[0].to(torch.float64)
    model.module.forward = lambda inputs: layers[1](layers[0](inputs.double()).float())
    assert "torch.float64 on cpu is not torch.float32 on cpu" in refused(lambda: backward(model))


@pytest.mark.parametrize("frozen", [0, 2, 4])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("setting", ["find_unused_parameters", "static_graph"])
def test_layers_may_be_frozen_if_ddp_finds_unused_parameters(early, frozen, setting):
    """All other layers have the gradients of a model without a hook, wherever the frozen layer is."""
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    alone = copy.deepcopy(layers)
    model = DistributedDataParallel(layers, **{setting: True})
    hook = None if early else hooked(model, method="lossless")
    layers[frozen].requires_grad_(False)
    hook = hook or hooked(model, method="lossless")
    for _ in range(2):
        for one in (model, alone):
            one.zero_grad()
            backward(one)
    assert hook.step == 2
    for name, parameter in layers.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter.grad, alone.get_parameter(name).grad), name


@pytest.mark.parametrize("setting", [{}, {"find_unused_parameters": True}])
def test_a_layer_that_is_unfrozen_while_another_is_frozen_after_wrapping_is_named(setting):
    """The number of layers that require a gradient is the same."""
    plain = net()
    plain[2].requires_grad_(False)
    model = DistributedDataParallel(plain, **setting)
    plain[2].requires_grad_(True)
    plain[0].requires_grad_(False)
    changed = "2" if setting else "0"
    assert refused(lambda: hooked(model)).startswith(f"{changed}.weight: it was frozen or unfrozen after the model")


class Heads(nn.Module):
    """Two heads, of which a pass uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, inputs, head: int = 0) -> torch.Tensor:
        return self.heads[head](self.body(inputs))


@pytest.mark.parametrize("head, later", [(0, 0), (1, 1), (0, 1), (1, 0)])
def test_what_a_pass_must_not_do_is_refused_whichever_layers_it_uses(head, later):
    model = DistributedDataParallel(Heads(), find_unused_parameters=True)
    hooked(model, method="dgc")
    for _ in range(2):  # legal, because gradients are removed between them
        model(torch.ones(2, 3), head).sum().backward()
        model.zero_grad()
    model(torch.ones(2, 3), head).sum().backward()
    line = refused(lambda: model(torch.ones(2, 3), later).sum().backward())
    assert line.startswith("dgc applies momentum in every backward pass")
    model = DistributedDataParallel(Heads(), find_unused_parameters=True)
    hooked(model)
    line = refused(lambda: model(torch.ones(2, 3), head).sum().backward(create_graph=True))
    assert line.startswith("backward: create_graph=True is not possible")


def test_a_layer_that_is_removed_or_replaced_after_wrapping_is_refused():
    for change in ("removed", "replaced"):
        model = DistributedDataParallel(net())
        if change == "removed":
            del model.module[2]
        else:
            model.module[2] = nn.Linear(4, 1)
        line = "model: its parameters have been removed or replaced since it was wrapped"
        assert refused(lambda model=model: hooked(model)).startswith(line)


def test_a_second_hook_is_refused_on_another_wrapper_too():
    model = DistributedDataParallel(net())
    hook, other = hooked(model), DistributedDataParallel(model.module)
    line = "0.weight: another hook exchanges its gradient already; call close of that hook first"
    assert refused(lambda: hooked(other)) == refused(lambda: hooked(model)) == line
    hook.close()
    hook = hooked(other)
    backward(other)
    assert hook.step == 1


def test_a_part_that_ddp_ignores_may_have_a_hook_of_its_own():
    plain = nn.Sequential(nn.Linear(3, 4), part := DistributedDataParallel(nn.Linear(4, 1)))
    ignored = ["1.module.weight", "1.module.bias"]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(plain, ignored)
    model = DistributedDataParallel(plain)
    hook, own = hooked(model), hooked(part)
    backward(model)
    assert hook.step == own.step == 1


def test_a_method_that_needs_a_plan_is_refused():
    line = "method: lags_adaptive takes the ratio of each layer from a plan, and a hook has no plan"
    assert refused(lambda: hooked(DistributedDataParallel(net()), method="lags_adaptive")).startswith(line)


def test_a_model_may_be_frozen_while_another_one_trains_through_it():
    critic = DistributedDataParallel(net())
    hook = hooked(critic)
    critic.requires_grad_(False)
    generated = torch.ones(2, 3, requires_grad=True)
    critic(generated).sum().backward()
    assert generated.grad.any() and hook.step == 0
    critic.requires_grad_(True)
    backward(critic)
    assert hook.step == 1


def test_an_optimizer_of_another_model_is_refused(tmp_path):
    model, plain, other = DistributedDataParallel(net()), net(), sgd(net())
    mesh, sharded = init_device_mesh("cpu", (1, 1), mesh_dim_names=("rep", "shard")), net()
    early = sgd(sharded)  # fully_shard replaces the parameters
    fully_shard(sharded, mesh=mesh["shard"])
    line = "optimizer: SGD has no parameter of the model; make it from this model's parameters"
    for call in (
        lambda: hooked(model, other),
        lambda: hooked(model, [sgd(model), other]),
        lambda: FSDPHook(sharded, mesh["rep"], early, "none"),
        lambda: LocalSteps(plain, other, "diloco"),
    ):
        assert refused(call) == line

    def recorded_with_another() -> None:
        with record(model, other, tmp_path / "profile.json"):
            pass

    assert refused(recorded_with_another) == f"record: {line}"


def test_an_optimizer_decays_what_a_hook_with_momentum_does_not_exchange():
    """One SGD trains two models, and an ignored parameter. DGC takes the weight decay of its own model alone."""
    ends = []
    for method, options in (("none", {}), ("dgc", {"ratio": 1.0, "momentum": 0.0})):
        torch.manual_seed(0)
        first, second = net(), net()
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(first, ["0.bias"])
        models = DistributedDataParallel(first), DistributedDataParallel(second)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, weight_decay=0.5)
        hooks = DDPHook(models[0], optimizer, method, **options), DDPHook(models[1], optimizer, "none")
        for _ in range(3):
            optimizer.zero_grad()
            for model in models:
                backward(model)
            gradients = [p.grad for p in second.parameters()]
            optimizer.step()
            assert all(p.grad is g for p, g in zip(second.parameters(), gradients, strict=True))
        ends.append([p.detach().clone() for p in (*first.parameters(), *second.parameters())])
        if method == "dgc":
            assert refused(lambda optimizer=optimizer: optimizer.step(lambda: None)) == (
                "SGD.step was given a closure, and decays a parameter of shape (4,) that the hook does not exchange; "
                "give this parameter another optimizer"
            )
        for hook in hooks:
            hook.close()
    for plain, ours in zip(*ends, strict=True):
        torch.testing.assert_close(ours, plain)


def test_an_optimizer_that_replaces_one_with_weight_decay_is_refused():
    model = DistributedDataParallel(net())
    weights = [p for p in model.parameters() if p.dim() == 2]
    first = torch.optim.SGD(weights, lr=0.1, weight_decay=0.5)
    hook, second = hooked(model, first, "dgc"), sgd(model)
    backward(model)
    torch.optim.SGD([p for p in model.parameters() if p.dim() == 1], lr=0.1).step()  # they have no weight decay
    assert refused(second.step) == (
        "0.weight: dgc adds the weight decay of its own optimizer, and SGD, which it was not given, steps; give the "
        "hook the optimizer that steps"
    )
    first.step()
    hook.close()
    second.step()


class SameSGD(torch.optim.SGD):
    """A subclass that steps as SGD does."""


class SGDW(torch.optim.SGD):
    """Decays weights, and not the gradient."""

    def step(self, closure=None):
        return super().step(closure)


class OwnAdamW(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, SameSGD, SGDW, OwnAdamW])
def test_weight_decay_of_a_step_that_is_not_torchs_is_refused(kind):
    model = DistributedDataParallel(net())
    settings = {"betas": (0.0, 0.9)} if kind is OwnAdamW else {}
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.5, **settings)
    hook = hooked(model, optimizer, "dgc")
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # it replaces step of the instance
    if kind in (SGDW, OwnAdamW):
        line = refused(lambda: backward(model))
        assert line.startswith(f"weight_decay: 0.5 of {kind.__name__} may or may not belong before the method's")
        return
    backward(model)
    optimizer.step()
    assert hook.step == 1 and optimizer.param_groups[0]["weight_decay"] == 0.5


def test_a_bucket_whose_indices_need_more_than_32_bits_is_refused():
    topk, cast = method_class("topk")(ratio=0.1), method_class("cast")()
    line = "model: topk would have a bucket of 1,073,741,824 entries, and at most 1,073,741,823 are possible; use a"
    assert refused(lambda: refuse_large("topk", topk, [5, 2**30])).startswith(line)
    refuse_large("topk", topk, [5, 2**30 - 1])
    refuse_large("cast", cast, [2**40])


def test_an_optimizer_of_several_models_or_of_some_layers_is_legal():
    model = DistributedDataParallel(net())
    hooked(model, [sgd(model.module[0], net()), sgd(model.module[2])])
    LocalSteps(plain := net(), sgd(plain[2], net()), "diloco")
