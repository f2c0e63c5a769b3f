"""Magnitudes that reach a threshold, and the largest of rows: compiled passes and torch against plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from dlgs_bench.exchange import magnitudes
from dlgs_bench.exchange.quantisation import ends

pytestmark = pytest.mark.unit

floats = st.one_of(st.floats(-9, 9, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, math.inf]))
vectors = st.lists(floats, max_size=80).map(torch.tensor)
thresholds = st.one_of(st.floats(0, 10, width=32), st.sampled_from([0.0, 1.0, 1e-45, math.inf]))


@given(vectors, thresholds)
@examples(4)
def test_what_reaches_a_threshold_is_counted_and_added_up(vector, h):
    chosen = [abs(x) for x in vector.tolist() if abs(x) >= h and x != 0]
    for way in (magnitudes.count_at_least, magnitudes.count_at_least_by_torch):
        many, total = way(vector, h)
        assert many == len(chosen) and total == pytest.approx(math.fsum(chosen))


def test_many_are_counted_to_the_last_and_added_up_as_exactly():
    many, total = magnitudes.count_at_least(torch.full((2**25 + 3,), -0.5), 0.5)
    assert (many, total) == (2**25 + 3, (2**25 + 3) / 2)


@given(st.lists(st.tuples(st.lists(floats, max_size=30), thresholds), min_size=1, max_size=5), st.booleans())
@examples(4)
def test_entries_of_at_least_the_threshold_of_their_piece(parts, with_nan):
    vector = torch.tensor([x for part, _ in parts for x in part])
    sizes = [len(part) for part, _ in parts]
    if with_nan:
        vector[len(vector) // 2 :][:1] = math.nan
    by_entry = [h for part, h in parts for _ in part]
    expected = [i for i, x in enumerate(vector.tolist()) if x != 0 and not abs(x) < by_entry[i]]
    h = torch.tensor([h for _, h in parts])
    assert magnitudes.indices_at_least(vector, h, sizes).tolist() == expected
    assert magnitudes.indices_at_least_by_torch(vector, h, ends(len(vector), sizes)).tolist() == expected


@given(st.integers(1, 5), st.integers(1, 300), st.integers(1, 320), st.integers(0, 2**16), st.booleans())
@examples(4)
def test_the_largest_of_a_row_are_what_sorting_finds_and_of_equals_the_first(many, length, k, seed, ties):
    rows = torch.randn(many, length, generator=torch.Generator().manual_seed(seed))
    rows = (rows * 2).round() * 0.7 if ties else rows  # the last bit of float32(0.7) is 1
    places = magnitudes.largest_in_rows(rows, k)
    # A stable sort keeps the order of equals.
    order = rows.abs().sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(places, order[:, :k].sort().values)
    torch_backend = magnitudes.largest_in_rows_by_torch(rows, min(k, length))
    assert torch.equal(rows.gather(1, torch_backend).abs().sort().values, rows.gather(1, places).abs().sort().values)
    assert ties or torch.equal(torch_backend, places)


@pytest.mark.parametrize("kind", ["zero", "one large", "nan", "rising", "infinite"])
def test_the_largest_of_rows_of_any_kind(kind):
    rows = torch.zeros(2, 4096)
    match kind:
        case "one large":
            rows[:, 4095] = -1
        case "nan":
            rows[:, 17] = math.nan
        case "rising":
            rows += torch.arange(4096)
        case "infinite":
            rows[:, ::2] = -math.inf
    order = rows.abs().sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(magnitudes.largest_in_rows(rows, 64), order[:, :64].sort().values)
