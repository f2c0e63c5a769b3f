"""Local steps in somebody's script, on two ranks, against DiLoCo written down for one process."""

import copy
import re

import pytest
import torch
from local_steps_script import CASES, EVERY, STEPS, STOP, Odd, adamw, built, inner_step, observed, trained
from support import documented
from torch import nn

from dlgs_bench.hooks.local_steps import LocalSteps


def diloco(workers: int, first=(EVERY,) * 4, delay: int = 0, mixing: float = 0.0) -> list[list[list[torch.Tensor]]]:
    """The weights of DiLoCo with AdamW inside, by rank and step, with torch's own SGD as outer optimizer.

    ``first``: the first step at which each parameter is exchanged.
    """
    models = [built() for _ in range(workers)]
    optimizers = [adamw(model) for model in models]
    shared = [torch.nn.Parameter(p.detach().clone()) for p in models[0].parameters()]
    outer = torch.optim.SGD(shared, lr=0.7, momentum=0.9, nesterov=True)
    histories: list[list[list[torch.Tensor]]] = [[] for _ in models]
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inner_step(model, optimizer, step, rank)
        for n, p in enumerate(shared):
            p.grad = None  # such a parameter is left out by the optimizer
            if (step + 1 - first[n]) % EVERY == 0:
                p.grad = sum(p.detach() - [*model.parameters()][n].detach() for model in models) / workers
        outer.step()
        for n, p in enumerate(shared):
            if step + 1 - delay >= first[n] and (step + 1 - delay - first[n]) % EVERY == 0:
                for model in models:
                    own = [*model.parameters()][n].data
                    own.copy_(mixing * own + (1 - mixing) * p.detach())
        for history, model in zip(histories, models, strict=True):
            history.append([p.detach().clone() for p in model.parameters()])
    return histories


@pytest.fixture(scope="module")
def ranks(worlds) -> list[dict]:
    return worlds("torch_dist").run(observed)


@pytest.mark.engine
@pytest.mark.parametrize("name, written", [
    ("diloco", {}),
    ("streaming", {"first": (3, 1, 1, 1), "delay": 1, "mixing": 0.5}),  # the largest parameter is a fragment
])  # fmt: skip
def test_diloco_with_adamw_goes_where_the_algorithm_written_down_goes(ranks, name, written):
    for found, history in zip(ranks, diloco(2, **written), strict=True):
        for mine, theirs in zip(found[name][0], history, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.engine
@pytest.mark.parametrize("method", [*CASES, "bf16"])
def test_saved_between_exchanges_and_loaded_is_never_stopped(ranks, method):
    for found in ranks:
        whole, resumed = found[method]
        assert len(resumed) == STEPS - STOP
        for mine, theirs in zip(whole[STOP:], resumed, strict=True):
            assert all(map(torch.equal, mine, theirs))


@pytest.mark.engine
@pytest.mark.parametrize("method", ["diloco", "sparseloco", "bf16"])
def test_workers_are_equal_after_an_exchange_alone(ranks, method):
    first, second = (found[method][0] for found in ranks)
    for step, (mine, theirs) in enumerate(zip(first, second, strict=True), start=1):
        assert all(map(torch.equal, mine, theirs)) == (step % EVERY == 0)


@pytest.mark.engine
def test_tensors_of_every_layout_and_dtype_start_as_those_of_rank_0(ranks):
    expected = Odd(0)
    for found in ranks:
        for ours, theirs in zip(found["odd"]["start"], (*expected.parameters(), *expected.buffers()), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.engine
def test_a_layer_that_is_unfrozen_later_is_named_in_the_next_exchange(ranks):
    for found in ranks:
        assert found["odd"]["said"].startswith("head.weight: diloco does not exchange it, so workers would drift apart")


@pytest.mark.engine
def test_weights_that_construction_replaces_on_a_resume_are_refused_on_all_ranks(ranks):
    line = "model: its weights were loaded before LocalSteps was made, which replaced them by those of rank 0"
    for rank, found in enumerate(ranks):
        between, after = found["loaded too early"]
        assert between.startswith(line if rank else f"rank 1: {line}") and "\n" not in between
        assert after == ""


@pytest.mark.unit
@pytest.mark.parametrize("variable", ["WORLD_SIZE", "HOROVOD_SIZE"])
def test_processes_without_a_process_group_are_refused(variable, monkeypatch):
    monkeypatch.setenv(variable, "2")
    with pytest.raises(ValueError, match=r"^group: 2 processes were started without a process group") as error:
        LocalSteps(built(), adamw(built()), "diloco")
    assert "\n" not in str(error.value)


@pytest.mark.unit
def test_without_a_process_group_there_is_one_worker():
    (history,) = diloco(1)
    for mine, theirs in zip(trained("diloco", 0)[0], history, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.unit
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_go_where_weights_of_float32_go(dtype):
    """What 16 bits cut off from the shared weights is not exchanged as a change of the weights."""
    moved = {}
    for one in (torch.float32, dtype):
        torch.manual_seed(0)
        model = nn.Linear(20, 20, bias=False).to(dtype).to(one)
        start, optimizer = model.weight.detach().clone(), torch.optim.SGD(model.parameters(), lr=1.0)
        with LocalSteps(model, optimizer, "diloco", local_steps=1) as sync:
            for step in range(120):
                model.weight.grad = torch.full_like(model.weight, 2**-6 if step < 3 else 0.0)
                optimizer.step()
                sync.step()
        moved[one] = model.weight.detach().float() - start.float()
    assert (moved[dtype] - moved[torch.float32]).norm() < 0.02 * moved[torch.float32].norm()


@pytest.mark.unit
def test_muon_may_be_the_inner_optimizer():
    """One worker that exchanges and applies its own weights trains like a worker that never exchanges."""
    weights = []
    for every in (3, 100):
        model = built()
        for vector in (p for p in model.parameters() if p.dim() == 1):
            vector.requires_grad_(False)
        matrices = [p for p in model.parameters() if p.dim() == 2]
        optimizer = torch.optim.Muon(matrices, lr=0.02)
        with LocalSteps(model, optimizer, "diloco", local_steps=every, outer_lr=1.0, outer_momentum=0.0) as sync:
            for step in range(7):
                inner_step(model, optimizer, step, 0)
                sync.step()
        weights.append([matrix.detach() for matrix in matrices])
    for one, other, start in zip(*weights, (p for p in built().parameters() if p.dim() == 2), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert (one - start).abs().max() > 1e-2


@pytest.mark.unit
def test_parameters_that_were_replaced_are_refused_in_the_next_exchange():
    model = built()
    sync = LocalSteps(model, adamw(model), "diloco", local_steps=2)
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
    sync.step()
    with pytest.raises(ValueError, match=r"^model: its parameters have been replaced since diloco began.*LocalSteps"):
        sync.step()


@pytest.mark.unit
def test_the_documentation_says_how():
    model, batches = built(), [(torch.randn(5, 6), torch.randint(0, 3, (5,))) for _ in range(30)]
    names = {"model": model, "optimizer": adamw(model), "batches": batches}
    exec(documented("Local steps"), names | {"loss_of": torch.nn.functional.cross_entropy}, names)
    assert names["sync"].steps == 30


@pytest.mark.unit
def test_a_mistake_is_one_line():
    model = built()
    optimizer = adamw(model)
    state = LocalSteps(model, optimizer, "diloco", local_steps=4).state_dict()
    wrong = {
        "method: topk exchanges gradients and has no local steps; give diloco or sparseloco, or use dlgs_bench.": (
            lambda: LocalSteps(model, optimizer, "topk", ratio=0.1)
        ),
        "method: 'dilco' is not a method (did you mean 'diloco'?)": lambda: LocalSteps(model, optimizer, "dilco"),
        "diloco.local_steps: 0 is not valid; give a value >= 1": (
            lambda: LocalSteps(model, optimizer, "diloco", local_steps=0)
        ),
        "model: AdamW is not a plain torch.nn.Module": lambda: LocalSteps(optimizer, model, "diloco"),
        "state: saved by diloco with local_steps=4, here it is 30; give local_steps=4": (
            lambda: LocalSteps(model, optimizer, "diloco").load_state_dict(state)
        ),
    }
    for expected, call in wrong.items():
        with pytest.raises(ValueError, match=re.escape(expected)) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.unit
def test_the_optimizer_may_get_other_hooks_after_local_steps():
    model = built()
    optimizer, called = adamw(model), []
    with LocalSteps(model, optimizer, "diloco", local_steps=2) as sync:
        optimizer.register_step_pre_hook(lambda *_: called.append(sync.steps))
        for step in range(3):
            inner_step(model, optimizer, step, 0)
            sync.step()
    assert called == [0, 1, 2]


@pytest.mark.unit
def test_a_resume_without_the_outer_state_is_said_on_the_first_step():
    model = built()
    optimizer = adamw(model)
    inner_step(model, optimizer, 0, 0)
    sync = LocalSteps(model, optimizer, "diloco")
    with sync, pytest.warns(UserWarning, match="the outer state is new; after a resume, call load_state_dict"):
        inner_step(model, optimizer, 1, 0)
    sync = LocalSteps(model, adamw(model), "diloco")
    fresh = sync._optimizers[0]
    model.load_state_dict(built(3).state_dict())  # after the construction, which kept other weights
    with pytest.raises(ValueError, match=r"^model: its weights have changed since LocalSteps was made; load weights"):
        inner_step(model, fresh, 0, 0)


@pytest.mark.unit
def test_a_step_after_close_is_one_line_and_a_copy_of_the_model_has_no_local_steps():
    model = built()
    with LocalSteps(model, adamw(model), "diloco", local_steps=2) as sync:
        model.sync = sync
        assert copy.deepcopy(model).sync is None and model.sync is sync
        sync.step()
    with pytest.raises(ValueError, match=r"^LocalSteps was closed, so diloco exchanges nothing; call step .+ again$"):
        sync.step()
    assert sync.steps == 1
