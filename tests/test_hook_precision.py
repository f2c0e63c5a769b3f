"""Hooks and numbers: gradients that are not finite, loss scales, 16-bit parameters, autocast and default dtypes."""

import hook_parts as parts
import pytest
import torch
from support import horovod_is_slow
from test_hook_scripts import HOOKED, OPTIONS, equal, few_or_others

pytestmark = [pytest.mark.engine, horovod_is_slow]


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_as_if_it_had_not_happened(engine, worlds):
    """The script skips such a step. Both ranks and every method are tested."""
    for method in HOOKED:
        if method == "none":
            continue  # it keeps nothing, so nothing is watched
        run = worlds(engine).run
        without = run(parts.bad_step, engine, method, OPTIONS[method], None, True)
        for bad in (float("inf"), float("nan")):
            found = run(parts.bad_step, engine, method, OPTIONS[method], bad, True)
            for ours, expected in zip(found, without, strict=True):
                assert ours["finite"] == [True, True, False, True, True, True], (method, bad)
                assert ours["state is finite"] and ours["step"] == expected["step"] == 5, (method, bad)
                assert equal(ours["state"], expected["state"]), (method, bad)
                assert equal(ours["weights"], expected["weights"]), (method, bad)


@few_or_others
def test_a_step_that_is_applied_though_not_finite_leaves_the_state_finite(engine, methods, worlds):
    for method in methods:
        for found in worlds(engine).run(parts.bad_step, engine, method, OPTIONS[method], float("inf"), False):
            assert not found["finite"][2] and found["state is finite"], method


@pytest.mark.parametrize("method", ["gtopk", "oktopk"])
def test_gradients_whose_sums_could_overflow_count_as_not_finite(engine, method, worlds):
    """A NaN within the method would end one rank, and the others would wait for it."""
    for found in worlds(engine).run(parts.enormous, engine, method, OPTIONS[method]):
        assert found == [False, False, True, True]


def test_without_compression_a_bad_step_is_bad_on_both_ranks(engine, worlds):
    for found in worlds(engine).run(parts.bad_step, engine, "none", {}, float("inf"), True):
        assert found["finite"] == [True, True, False, True, True, True]


@pytest.mark.parametrize(
    "methods", [("topk", "powersgd", "dgc"), pytest.param(("none", "lags", "dlgs", "efsign"), marks=pytest.mark.slow)]
)
def test_residuals_do_not_follow_the_scale_of_the_loss(engine, methods, worlds):
    """The loss scale doubles and halves. The run without a scaler leaves out the step that the scaler skips."""
    for method in methods:
        run = worlds(engine).run
        plain = run(parts.scaled, engine, method, OPTIONS[method], False)
        for ours, expected in zip(run(parts.scaled, engine, method, OPTIONS[method], True), plain, strict=True):
            assert len(set(ours["scales"])) > 2, method
            assert equal(ours["state"], expected["state"]) and equal(ours["weights"], expected["weights"]), method


@pytest.mark.parametrize("optimizer", ["SGD", "fused"])
def test_a_scaler_that_the_hook_does_not_have_is_refused_in_the_first_step(engine, optimizer, worlds):
    """Otherwise residuals would follow the loss scale. A method without state needs no scaler."""
    run = worlds(engine).run
    for line in run(parts.unknown_scaler, engine, "topk", optimizer):
        assert line.startswith("scaler: a GradScaler that the hook does not have scales the loss") and "\n" not in line
    assert run(parts.unknown_scaler, engine, "topk", optimizer, False) == ["", ""]
    assert run(parts.unknown_scaler, engine, "none", optimizer) == ["", ""]
    assert run(parts.unknown_scaler, engine, "cast", optimizer) == ["", ""]


def test_a_sum_in_16_bits_rounds_gradients_as_the_loss_is_scaled(engine, worlds):
    """Gradients of 1e-9 would round to 0 in float16; scaled by 2^20 they do not."""
    assert worlds(engine).run(parts.tiny, engine) == [[0, 0], [0, 0]]


MIXED = {"filters": torch.bfloat16, "vector": torch.float32, "wide": torch.float16, "long": torch.bfloat16}


EQUAL = [pytest.param(dict.fromkeys(MIXED, dtype), marks=pytest.mark.slow) for dtype in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("dtypes", [*EQUAL, MIXED])
def test_16_bit_parameters_have_float32_residuals_which_lose_nothing_but_roundings(engine, dtypes, worlds):
    for method in ("topk", "lags", "powersgd", "efsign"):
        first, second = worlds(engine).run(parts.sixteen_bits, engine, dtypes, method, OPTIONS[method])
        assert first["kinds"] == {(True, torch.float32)}
        for name, dtype in dtypes.items():
            assert torch.equal(first["applied"][name], second["applied"][name])
            total, true = first["totals"][name]
            bits = torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
            assert (total - true).norm() <= bits * 10 * true.norm() / 10**0.5, (method, name)


@few_or_others
def test_what_surrounds_backward_changes_no_bit(engine, methods, worlds):
    for method in methods:
        for found in worlds(engine).run(parts.surrounded, engine, method, OPTIONS[method]):
            for name in parts.SURROUNDINGS:
                assert equal(found[name], found["nothing"]), (method, name)
