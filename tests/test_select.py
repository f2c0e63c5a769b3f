"""Selection against a slow, obvious oracle; both implementations, on every kind of input."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness import select
from harness.select import Threshold, TopK

floats = st.one_of(
    st.floats(-100, 100, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, float("inf"), float("-inf")]),
)
vectors = st.lists(floats, min_size=1, max_size=80)
both = pytest.mark.parametrize("name", select.IMPLEMENTATIONS)


def taken(name: str, values: list[float], rule):
    """(values, indices, what is left), after the laws that hold for every rule."""
    acc = torch.tensor(values, dtype=torch.float32)
    before = acc.clone()
    sent, indices = select.implementation(name).take(acc, rule)
    chosen = indices.long()
    assert len(set(chosen.tolist())) == len(chosen)
    assert torch.equal(sent.view(torch.int32), before[chosen].view(torch.int32))
    expected = before.clone()
    expected[chosen] = 0
    assert torch.equal(acc, expected)
    return sent.tolist(), chosen.tolist(), acc.tolist()


@both
@given(vectors, st.data())
@settings(deadline=None, max_examples=200)
def test_top_k_takes_the_largest_magnitudes(name, values, data):
    k = data.draw(st.integers(1, len(values)))
    sent, _, _ = taken(name, values, TopK(k))
    magnitudes = np.sort(np.abs(np.float32(values)))
    assert sorted(map(abs, sent)) == magnitudes[-k:].tolist()


@both
@given(vectors, st.data())
@settings(deadline=None)
def test_kth_magnitude(name, values, data):
    k = data.draw(st.integers(1, len(values)))
    found = select.implementation(name).kth_magnitude(torch.tensor(values, dtype=torch.float32), k)
    assert found == np.sort(np.abs(np.float32(values)))[-k]


@both
@given(vectors, st.floats(0, 100, width=32))
@example([0.0, 1.0, -0.0], 0.0)
@settings(deadline=None)
def test_threshold_takes_what_reaches_it_and_is_not_zero(name, values, h):
    _, chosen, _ = taken(name, values, Threshold(h))
    assert chosen == [i for i, v in enumerate(np.float32(values)) if abs(v) >= h and v != 0]


@both
@pytest.mark.parametrize("rule", [TopK(1), TopK(3), Threshold(0.0), Threshold(2.5)])
def test_nan_is_refused_before_anything_is_sent(name, rule):
    nan = torch.tensor([1.0, float("nan"), -3.0, float("inf")])
    with pytest.raises(FloatingPointError, match="NaN"):
        select.implementation(name).take(nan.clone(), rule)
    with pytest.raises(FloatingPointError, match="NaN"):
        select.implementation(name).kth_magnitude(nan, 2)


@both
def test_indices_pass_through(name):
    _, chosen, _ = taken(name, [1.0, 2.0, 3.0], torch.tensor([2, 0]))
    assert chosen == [2, 0]


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 1023, 2**20 + 7])
@pytest.mark.parametrize("kind", ["normal", "constant", "zero", "heavy"])
def test_fast_equals_torch_on_large_inputs(size, kind):
    generator = torch.Generator().manual_seed(size)
    acc = torch.randn(size, generator=generator)
    acc = {"normal": acc, "constant": acc * 0 + 2, "zero": acc * 0, "heavy": acc**9}[kind]
    by_torch, fast = map(select.implementation, select.IMPLEMENTATIONS)
    for k in {1, max(1, size // 100), max(1, size // 10), size}:
        h = by_torch.kth_magnitude(acc, k)
        assert fast.kth_magnitude(acc, k) == h
        left_torch, left_fast = acc.clone(), acc.clone()
        slow, _ = by_torch.take(left_torch, Threshold(h))
        quick, _ = fast.take(left_fast, Threshold(h))
        assert torch.equal(slow, quick) and torch.equal(left_torch, left_fast)
        slow, _ = by_torch.take(acc.clone(), TopK(k))
        quick, indices = fast.take(acc.clone(), TopK(k))
        assert torch.equal(slow.abs().sort().values, quick.abs().sort().values)
        assert (indices[1:] > indices[:-1]).all()


def test_an_unknown_implementation_is_refused_by_name():
    with pytest.raises(ValueError, match="'quick' is not known; one of: torch, fast"):
        select.implementation("quick")
