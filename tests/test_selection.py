"""Selection against a slow, obvious oracle; both implementations, on every kind of input."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support import examples

from dlgs_bench.exchange import selection
from dlgs_bench.exchange.selection import Threshold, TopK, compiled_backend

pytestmark = pytest.mark.unit

floats = st.one_of(
    st.floats(-100, 100, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, float("inf"), float("-inf")]),
)
vectors = st.lists(floats, min_size=1, max_size=80)
both = pytest.mark.parametrize("name", selection.IMPLEMENTATIONS)


def taken(name: str, values: list[float], rule, gradient: list[float] | None = None):
    """(values, indices, what is left), after the laws that hold for every rule."""
    corrected = torch.tensor(values, dtype=torch.float32)
    added = None if gradient is None else torch.tensor(gradient, dtype=torch.float32)
    before = corrected.clone() if added is None else corrected + added
    sent, indices = selection.implementation(name).take(corrected, rule, added)
    chosen = indices.long()
    assert len(set(chosen.tolist())) == len(chosen)
    assert torch.equal(sent.view(torch.int32), before[chosen].view(torch.int32))
    expected = before.clone()
    expected[chosen] = 0
    assert torch.equal(corrected, expected)
    return sent.tolist(), chosen.tolist(), corrected.tolist()


@both
@given(vectors, st.data())
@examples(4)
def test_top_k_takes_the_largest_magnitudes(name, values, data):
    k = data.draw(st.integers(1, len(values)))
    sent, _, _ = taken(name, values, TopK(k))
    magnitudes = np.sort(np.abs(np.float32(values)))
    assert sorted(map(abs, sent)) == magnitudes[-k:].tolist()


@both
@given(vectors, st.data())
def test_kth_magnitude(name, values, data):
    k = data.draw(st.integers(1, len(values)))
    found = selection.implementation(name).kth_magnitude(torch.tensor(values, dtype=torch.float32), k)
    assert found == np.sort(np.abs(np.float32(values)))[-k]


@both
@given(vectors, st.floats(0, 100, width=32))
@example([0.0, 1.0, -0.0], 0.0)
def test_threshold_takes_what_reaches_it_and_is_not_zero(name, values, h):
    _, chosen, _ = taken(name, values, Threshold(h))
    assert chosen == [i for i, v in enumerate(np.float32(values)) if abs(v) >= h and v != 0]


@both
@given(st.lists(st.tuples(floats, st.floats(-100, 100, width=32)), min_size=1, max_size=80), st.data())
def test_a_gradient_is_added_before_anything_is_chosen(name, pairs, data):
    values, gradient = map(list, zip(*pairs, strict=True))
    rules = st.one_of(st.builds(TopK, st.integers(1, len(pairs))), st.builds(Threshold, st.floats(0, 100, width=32)))
    rule = data.draw(rules)
    together = taken(name, values, rule, gradient)
    assert together == taken(name, (np.float32(values) + np.float32(gradient)).tolist(), rule)


@both
@pytest.mark.parametrize("rule", [TopK(1), TopK(3), Threshold(0.0), Threshold(2.5)])
def test_nan_is_refused_before_anything_is_sent(name, rule):
    nan = torch.tensor([1.0, float("nan"), -3.0, float("inf")])
    with pytest.raises(FloatingPointError, match="NaN"):
        selection.implementation(name).take(nan.clone(), rule)
    with pytest.raises(FloatingPointError, match="NaN"):
        selection.implementation(name).take(torch.full((4,), float("inf")), rule, -nan)  # inf - inf
    with pytest.raises(FloatingPointError, match="NaN"):
        selection.implementation(name).kth_magnitude(nan, 2)


@both
def test_indices_pass_through(name):
    _, chosen, _ = taken(name, [1.0, 2.0, 3.0], torch.tensor([2, 0]))
    assert chosen == [2, 0]


SEEN = compiled_backend.STRIDE  # of each so many entries, the first few are in the sample that bounds the k-th


KINDS = {
    "normal": lambda corrected: corrected,
    "constant": lambda corrected: corrected * 0 + 2,
    "zero": lambda corrected: corrected * 0,
    "heavy": lambda corrected: corrected**9,
    "denormal": lambda corrected: corrected * 1e-42,
    "infinite": lambda corrected: torch.where(corrected > 2, corrected * torch.inf, corrected),
    "mostly zero": lambda corrected: torch.where(corrected.abs() > 3, corrected, 0),
    "large where sampled": lambda corrected: torch.where(
        torch.arange(len(corrected)) % SEEN < 16, corrected + 9, corrected
    ),
    "small where sampled": lambda corrected: torch.where(
        torch.arange(len(corrected)) % SEEN < 16, corrected / 99, corrected
    ),
}


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 255, 1023, 2**16, pytest.param(2**20 + 7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_equals_torch_on_large_inputs(size, kind):
    corrected = KINDS[kind](torch.randn(size, generator=torch.Generator().manual_seed(size)))
    compare(corrected, {1, *(max(1, size // share) for share in (10, 100, 1000)), size})


@pytest.mark.slow
def test_compiled_equals_torch_on_very_large_inputs():
    compare(torch.randn(2**25 + 3, generator=torch.Generator().manual_seed(0)), {2**25 // 100})


def compare(corrected, ks):
    """Both implementations on ``corrected``, for every rule: bit for bit, but for which of equals Top-K takes."""
    torch_backend, fast = map(selection.implementation, selection.IMPLEMENTATIONS)
    for k in ks:
        h = torch_backend.kth_magnitude(corrected, k)
        assert fast.kth_magnitude(corrected, k) == h
        for rule in (Threshold(h), TopK(k)):
            left_torch, left_fast = corrected / 2, corrected / 2
            slow, _ = torch_backend.take(left_torch, rule, corrected / 2)
            quick, indices = fast.take(left_fast, rule, corrected / 2)
            assert (indices[1:] > indices[:-1]).all()
            if isinstance(rule, Threshold):
                assert torch.equal(slow, quick) and torch.equal(left_torch, left_fast)
            else:
                assert torch.equal(slow.abs().sort().values, quick.abs().sort().values)
                assert not left_fast[indices].any()
                left_fast[indices] = quick
                assert torch.equal(left_fast, corrected / 2 + corrected / 2)


def test_an_unknown_implementation_is_refused_by_name():
    with pytest.raises(ValueError, match="'quick' is not a selection; use one of: torch, compiled"):
        selection.implementation("quick")
