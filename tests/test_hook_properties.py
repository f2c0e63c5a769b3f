"""Whole scripts, drawn at random, give the weights of the plain run, or of Top-K written in plain lines."""

import pytest
import torch
from hook_habits import HEADS, WORKERS, alone, play
from hypothesis import example, given
from hypothesis import strategies as st
from support import examples, horovod_is_slow

pytestmark = pytest.mark.engine
RATIO = 0.2

steps = st.fixed_dictionaries({
    "uses": st.tuples(*[st.sampled_from(list(HEADS))] * WORKERS),
    "passes": st.sampled_from([1, 1, 2, 3]),  # backward passes before the step
    "local": st.booleans(),  # all but the last are in no_sync, where there is such a thing
    "none": st.booleans(),  # zero_grad sets to None
    "bad": st.sampled_from([None, None, None, (0, 0), (0, 1), (1, 1)]),  # (pass, rank) with infinite loss
    "clip": st.sampled_from([None, 0.1, 1.0]),
    "skip": st.sampled_from([False, False, False, True]),
})  # fmt: skip
scripts = st.fixed_dictionaries({
    "dtype": st.sampled_from([torch.float32, torch.float32, torch.bfloat16]),
    "optimizer": st.sampled_from(["SGD", "momentum", "AdamW", "two"]),
    "autocast": st.booleans(),  # around backward
    "view": st.booleans(),  # gradient_as_bucket_view
    "steps": st.lists(steps, min_size=3, max_size=8),
})  # fmt: skip


def plain_step(heads: str, **changes) -> dict:
    step = {
        "uses": (heads, heads),
        "passes": 1,
        "local": False,
        "none": False,
        "bad": None,
        "clip": None,
        "skip": False,
    }
    return step | changes


# A head without a gradient in a step that is not finite, then a step that would move it by its momentum.
BAD_AND_UNUSED = {"dtype": torch.float32, "optimizer": "momentum", "autocast": False, "view": False} | {
    "steps": [plain_step("both"), plain_step("both"), plain_step("left", none=True, bad=(0, 0)), plain_step("left")]
}


def agree(ranks: list[list[torch.Tensor]], expected: list[torch.Tensor], dtype: torch.dtype) -> None:
    """All ranks have the same bits, and these are the expected ones to rounding."""
    for weights in ranks:
        assert all(map(torch.equal, weights, ranks[0]))
    bits = torch.finfo(dtype).eps
    for ours, theirs in zip(ranks[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=8 * bits, atol=8 * bits)


@horovod_is_slow
@examples(0.75)
@given(script=scripts)
@example(script=BAD_AND_UNUSED)
def test_a_script_without_compression_is_the_plain_one(engine, script, worlds):
    ranks = worlds(engine).run(play, engine, script, "none", {})
    agree(ranks, alone(engine, script, None), script["dtype"])
    if engine == "torch_dist":
        for ours, plain in zip(ranks, worlds(engine).run(play, engine, script, None, {}), strict=True):
            assert all(map(torch.equal, ours, plain))


@horovod_is_slow
@examples(0.75)
@given(script=scripts)
@example(script=BAD_AND_UNUSED)
def test_a_script_with_top_k_is_top_k_in_plain_lines(engine, script, worlds):
    ranks = worlds(engine).run(play, engine, script, "topk", {"ratio": RATIO})
    agree(ranks, alone(engine, script, RATIO), script["dtype"])
