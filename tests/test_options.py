"""What options of DLGS and LAGS do, beyond the laws of test_methods.py."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import at, examples

from dlgs_bench.errors import wrong_options
from dlgs_bench.exchange import Bucket, Method, StepContext
from dlgs_bench.exchange.plugin import class_info, method_class

pytestmark = pytest.mark.unit


def test_the_printed_dlgs_sends_everything_until_its_first_refresh():
    literal = method_class("dlgs")(ratio=0.1, refresh_every=4, refresh="literal")
    steps = [torch.randn(1000, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    sent = [next(literal.exchange(Bucket(0, g), at(i))).values.numel() for i, g in enumerate(steps, start=1)]
    assert sent[:4] == [1000] * 4 and all(20 < n < 300 for n in sent[4:])
    assert [literal.phase(i) for i in (1, 4, 5, 8)] == ["reuse", "refresh", "reuse", "refresh"]


def sent_by(method, gradient, step=1, **bucket) -> torch.Tensor:
    """The sent entries at their indices, and 0 elsewhere."""
    request = next(method.exchange(Bucket(0, gradient, **bucket), at(step)))
    return torch.zeros_like(gradient).index_put((request.indices,), request.values)


def test_dlgs_may_keep_a_threshold_for_each_layer_of_a_group():
    """A group sends for each layer what the layer alone would have sent, in refresh and reuse steps."""
    dlgs, sizes = method_class("dlgs"), (300, 1, 50)
    whole = dlgs(ratio=0.1, within="layer")
    alone = [dlgs(ratio=0.1) for _ in sizes]
    for step in range(1, 4):
        gradient = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(step)) * torch.tensor(
            [1.0] * 300 + [9.0] + [5.0] * 50
        )
        parts = gradient.split(sizes)
        expected = torch.cat([sent_by(m, p.clone(), step) for m, p in zip(alone, parts, strict=True)])
        assert torch.equal(sent_by(whole, gradient.clone(), step, shapes=tuple((n,) for n in sizes)), expected)


def test_dlgs_never_sends_more_than_its_cap():
    """A growing gradient makes a reused threshold send nearly everything."""
    dlgs = method_class("dlgs")
    for within, layers in (("group", ()), ("layer", ((600,), (400,)))):
        counts = {}
        for cap in (1.0, 0.2):
            method = dlgs(ratio=0.1, density_cap=cap, within=within)
            steps = [torch.randn(1000, generator=torch.Generator().manual_seed(i)) * i**2 for i in range(1, 6)]
            counts[cap] = [int((sent_by(method, g, i, shapes=layers) != 0).sum()) for i, g in enumerate(steps, 1)]
        assert max(counts[1.0]) > 500 and max(counts[0.2]) == 200
        assert counts[0.2][0] == counts[1.0][0] == 100


def capped_step(gradient: torch.Tensor, residual: torch.Tensor, h: float, most: int) -> torch.Tensor:
    """What a step of DLGS with a cap sends, entry by entry: an oracle without any of its code."""
    corrected = (gradient + residual).tolist()
    reach = [i for i, value in enumerate(corrected) if value != 0 and abs(value) >= h]
    if len(reach) > most:
        reach = sorted(reach, key=lambda i: -abs(corrected[i]))[:most]
    sent = torch.zeros_like(gradient)
    for i in reach:
        sent[i] = corrected[i]
    return sent


@given(
    size=st.integers(1, 40),
    filled=st.integers(0, 40),
    cap=st.integers(1, 10_000).map(lambda part: part / 10_000),
    seed=st.integers(0, 2**16),
)
@examples(2)
def test_a_cap_never_sends_zeros_against_an_oracle(size, filled, cap, seed):
    """Buckets have few entries that are not zero, as with embeddings and dead units."""
    method = method_class("dlgs")(ratio=0.2, refresh_every=3, density_cap=cap)
    generator = torch.Generator().manual_seed(seed)
    residual, most = torch.zeros(size), max(1, math.floor(Fraction(str(cap)) * size))
    for step in range(1, 6):
        gradient = torch.randn(size, generator=generator)
        gradient[torch.randperm(size, generator=generator)[filled:]] = 0.0
        request = next(method.exchange(Bucket(0, gradient.clone()), at(step)))
        assert request.values.numel() <= most and (request.values != 0).all()
        sent = torch.zeros(size).index_put((request.indices,), request.values)
        expected = capped_step(gradient, residual, method.thresholds[0][0], most)
        assert torch.equal(sent, expected)
        residual = gradient + residual - sent


def test_nan_is_refused_wherever_thresholds_are_kept():
    for within in ("group", "layer"):
        method = method_class("dlgs")(ratio=0.1, within=within)
        sent_by(method, torch.randn(90), shapes=((60,), (30,)))
        with pytest.raises(FloatingPointError, match="NaN"):
            sent_by(method, torch.tensor([1.0, float("nan"), 2.0] * 30), 2, shapes=((60,), (30,)))


@pytest.mark.parametrize("name, options", [("hard_threshold", {}), ("sparse_dense", {"ratio": 0.1})])
def test_a_constant_threshold_is_one_of_a_workers_gradient(name, options):
    """Equal workers send the same entries, however many they are."""
    gradient, sent = torch.randn(1000, generator=torch.Generator().manual_seed(0)), []
    for workers in (1, 4):
        method = method_class(name)(threshold=2.0, **options)
        context = StepContext(1, 0, workers, lr=0.1)
        sent.append(next(method.exchange(Bucket(0, gradient / workers), context)).indices.tolist())
    assert sent[0] == sent[1] and 10 < len(sent[0]) < 200


@pytest.mark.parametrize("bound, wrong, right", [
    (">= 1", 0.0, ">= 1"), ("<=8", 9.0, "<= 8"), ("< 0.5", 0.5, "< 0.5"), ("> -1e-3", -1.0, "> -0.001"),
])  # fmt: skip
def test_a_parameter_may_have_any_bound(bound, wrong, right):
    fields = class_info(bounded(bound), "bounded")["fields"]
    assert wrong_options("bounded", fields, {"levels": wrong}).endswith(f"give a value {right}")
    assert not wrong_options("bounded", fields, {})


def test_a_parameter_may_have_two_bounds():
    fields = class_info(bounded(">= 0", "< 1"), "bounded")["fields"]
    for wrong in (-0.1, 1.0):
        assert wrong_options("bounded", fields, {"levels": wrong}).endswith("give a value >= 0 and < 1")
    assert not any(wrong_options("bounded", fields, {"levels": right}) for right in (0.0, 0.99))


@pytest.mark.parametrize("bound", ["> 0, <= 1", "positive", 1, "=> 1", ">= 1.5.2", ">= e"])
def test_another_bound_is_refused_in_one_line(bound):
    with pytest.raises(ValueError, match=r"^Bounded\.levels: .* is not a bound; give bounds such as") as error:
        class_info(bounded(bound), "bounded")
    assert "\n" not in str(error.value)


def bounded(*bounds) -> type[Method]:
    """A method with a parameter that has these bounds."""

    @dataclass
    class Bounded(method_class("none")):
        levels: Annotated[(float, *bounds)] = 0.25

    return Bounded


def test_a_plan_may_give_a_bucket_a_ratio_of_its_own():
    lags = method_class("lags_adaptive")(ratio=0.1)
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert int((sent_by(lags, gradient.clone(), ratio=0.3) != 0).sum()) == 300
    assert int((sent_by(lags, gradient.clone()) != 0).sum()) == 100
