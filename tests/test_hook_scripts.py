"""Hooks in scripts as people write them: layers left out, several optimizers, odd parameters, momentum, weight decay.

What the scripts do is in hook_parts.py. The right result is that of the script without a hook, or one line.
"""

from functools import partial
from itertools import product

import hook_parts as parts
import pytest
import torch
from support import CLASSES, HOOKED, horovod_is_slow, options_of

from dlgs_bench.exchange.feedback import ErrorFeedback

pytestmark = [pytest.mark.engine, horovod_is_slow]  # test_hooks.py has the cheap tests on Horovod
OPTIONS = {name: options_of(name) for name in HOOKED}
KEEPS = [
    name for name in HOOKED
    if issubclass(CLASSES[name], ErrorFeedback) and CLASSES[name].conserves_mass in ("bits", "rounding")
]  # fmt: skip
MASS = [
    *((name, usage, False, False) for name in ("topk", "lags", "powersgd") for usage in parts.USAGE),
    ("topk", "in turns", True, False), ("topk", "in turns", False, True), ("efsign", "in turns", True, True),
    *((name, "in turns", False, False) for name in KEEPS if name not in ("topk", "lags", "powersgd")),
]  # fmt: skip
# One method of each kind of bucket and state; the others are slow.
FEW = ("none", "topk", "lags", "dlgs", "powersgd", "efsign", "dgc")
few_or_others = pytest.mark.parametrize("methods", [
    pytest.param(FEW, id="few"),
    pytest.param([name for name in HOOKED if name not in FEW], id="others", marks=pytest.mark.slow),
])  # fmt: skip


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def is_one_line(text: str, *parts_of_it: str) -> bool:
    return "\n" not in text and all(part in text for part in parts_of_it)


@few_or_others
def test_what_a_layer_keeps_is_not_lost_where_passes_leave_it_out(engine, methods, worlds):
    for method, usage, zeros, view in MASS:
        if method not in methods:
            continue
        for found in worlds(engine).run(parts.mass, engine, method, OPTIONS[method], usage, zeros, view):
            for name, total, true in found:
                where = f"{method}, {usage}, zeros {zeros}, view {view}, {name}"
                torch.testing.assert_close(total, true, rtol=1e-4, atol=1e-4, msg=where)


@pytest.mark.parametrize("method", ["topk", "lags", "powersgd"])
def test_nothing_is_lost_or_applied_twice_where_optimizers_take_turns(engine, method, worlds):
    for clears, view in (("optimizer", False), ("model", False), ("optimizer", True), ("model", True)):
        for found in worlds(engine).run(parts.optimizers_in_turns, engine, method, OPTIONS[method], clears, view):
            for total, true in found:
                torch.testing.assert_close(total, true, rtol=1e-4, atol=1e-4, msg=f"{clears}, view {view}")


def test_momentum_gets_zeros_of_unused_layers_whenever_gradients_are_cleared(engine, worlds):
    for method in [name for name in HOOKED if CLASSES[name].owns_momentum]:
        run = partial(worlds(engine).run, parts.momentum_in_turns, engine, method, OPTIONS[method])
        expected = run("zeros")
        for clears, view in product(("all before", "before", "after"), (False, True)):
            for found, own in zip(run(clears, view), expected, strict=True):
                torch.testing.assert_close(found, own, rtol=1e-5, atol=1e-6, msg=f"{method}, {clears}, view {view}")


def test_momentum_keeps_its_updates_of_unused_layers_if_the_script_looks_at_a_gradient(engine, worlds):
    for method in [name for name in HOOKED if CLASSES[name].owns_momentum]:
        run = partial(worlds(engine).run, parts.momentum_in_turns, engine, method, OPTIONS[method], "before", True)
        for looked, own in zip(run(True), run(False), strict=True):
            assert all(map(torch.equal, looked, own)), method


def test_a_layer_that_nobody_uses_is_left_alone_as_without_a_hook(engine, worlds):
    if engine != "torch_dist":
        pytest.skip("Horovod's own optimizer gives such a layer zeros, as test_hooks shows")
    for view in (False, True):
        for found in worlds(engine).run(parts.unused_as_without_a_hook, view):
            for ours, theirs in found:
                assert (ours is None) == (theirs is None) and (ours is None or torch.equal(ours, theirs))


def test_a_layer_that_is_frozen_later_stays_as_it_is(engine, worlds):
    for zeros, view in ((False, False), (True, True)):
        for stayed in worlds(engine).run(parts.frozen_later, engine, zeros, view):
            assert stayed == [False, False, False, True, True, True]


@pytest.mark.parametrize("way", ["OneCycleLR", "CyclicLR", "another SGD", "another Adam"])
def test_momentum_by_a_second_way_is_refused_in_the_first_step_that_sees_it(engine, way, worlds):
    for method in ("dgc", "demo"):
        for lines in worlds(engine).run(parts.second_way, engine, method, way):
            assert is_one_line(lines[-1], f"{method} applies momentum itself, and the optimizer has"), lines
            assert len(lines) == 1


def test_weight_decay_acts_as_strongly_as_in_sgd_with_momentum(engine, worlds):
    for steps, maximize in ((30, False), (10, True)):
        for ours, plain, decays in worlds(engine).run(parts.decayed, engine, 1e-2, steps, maximize):
            assert decays == [1e-2, 2e-2, 0.0]  # the script sees what it set
            for mine, theirs in zip(ours, plain, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_weight_decay_finds_its_entries_if_the_memory_format_changes_after_the_hook(engine, worlds):
    if engine != "horovod":
        pytest.skip("DistributedDataParallel itself mixes up entries if the memory format changes after it")
    expected = worlds(engine).run(parts.converted, engine, "never")
    for when in ("before", "after"):
        for found, weights in zip(worlds(engine).run(parts.converted, engine, when), expected, strict=True):
            for ours, theirs in zip(found, weights, strict=True):
                torch.testing.assert_close(ours, theirs)


def test_two_optimizers_of_one_model_see_exchanged_gradients_whichever_steps_first(engine, worlds):
    for given in ("list", "tuple", "one"):
        for ours, plain in worlds(engine).run(parts.two_optimizers, engine, given):
            for mine, theirs in zip(ours, plain, strict=True):
                torch.testing.assert_close(mine, theirs)


def test_a_parameter_that_nobody_exchanges_is_named_in_the_next_step(engine, worlds):
    expected = {
        "loss module": (1, "a parameter of shape () in group 0"),
        "unfrozen": (4, "second.bias"),
        "added group": (4, "a parameter of shape () in group 1"),
        "new layer": (4, "added"),
        "assigned": (4, "first.weight"),
    }
    for found in worlds(engine).run(parts.unknown_parameters, engine):
        assert found.pop("own optimizer") == found.pop("frozen with zeros") == [""] * 5
        for habit, (step, name) in expected.items():
            assert len(found[habit]) == step, (habit, found[habit])
            assert is_one_line(found[habit][-1], f"{name} has a gradient that the hook does not exchange by topk"), (
                found
            )


def test_one_optimizer_may_step_on_two_models_with_a_hook_each(engine, worlds):
    assert equal(*worlds(engine).run(parts.two_models_one_optimizer, engine))


@few_or_others
def test_odd_parameters_train_by_every_method(engine, methods, worlds):
    options = {method: OPTIONS[method] for method in ["none", *methods]}
    first, second = worlds(engine).run(parts.odd, engine, options)
    for method in options:
        assert equal(first[method], second[method]), method
        assert all(weight.isfinite().all() for weight in first[method]), method
    for ours, plain in zip(first["none"], first["plain"], strict=True):
        torch.testing.assert_close(ours, plain)


def test_a_closure_works_under_ddp_and_is_refused_in_one_line_on_horovod(engine, worlds):
    for found in worlds(engine).run(parts.closures, engine):
        if engine == "horovod":
            assert is_one_line(found["said"], "LBFGS.step was given a closure", "call backward before the step")
        else:
            assert found["said"] == "" and equal(*found["weights"])


def test_create_graph_gives_the_same_aggregates_or_is_refused_where_ddp_fails_itself(engine, worlds):
    for method in ("none", "topk", "powersgd", "dgc"):
        for found in worlds(engine).run(parts.second_order, engine, method, OPTIONS[method]):
            if engine == "horovod":
                assert equal(found["plain"], found["graph"]), method
            else:
                assert is_one_line(found["said"], "create_graph=True is not possible", "torch.autograd.grad"), method


def test_scripts_change_take_and_keep_gradients_as_without_a_hook(engine, worlds):
    for ours, plain, steps in worlds(engine).run(parts.own_gradients, engine):
        assert steps == 6
        for mine, theirs in zip(ours, plain, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_gradients_used_without_an_exchange_or_exchanged_twice_are_refused(engine, worlds):
    expected = {
        "step in backward": "SGD.step: it is called within a backward pass, before topk has exchanged the gradients",
        "momentum twice a step": "dgc applies momentum in every backward pass, and gradients of the pass before",
        "wrapped again": "model: a DistributedDataParallel around it sums the same gradients; remove the outer wrapper",
        "another model's optimizer": "optimizer: SGD has no parameter of the model; make it from this model's",
    }
    if engine == "horovod":
        expected["wrapped before"] = "model: it contains a DistributedDataParallel, which sums the same gradients"
        expected["16 bits"] = "cast.dtype: Horovod's all-reduce does not support bfloat16; give float16"
        expected["wrapped later"] = "optimizer: Horovod's exchanges gradients itself; give the optimizer that it wraps"
    for found in worlds(engine).run(parts.refused, engine):
        assert found.keys() == expected.keys()  # an interrupted pass has no result
        for case, line in expected.items():
            assert is_one_line(found[case], line), found
    if engine == "horovod":
        assert worlds(engine).run(parts.warned_of_a_fresh_start) == [[], []]
