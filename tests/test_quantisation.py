"""Quantisation: compiled passes against torch operations, to the bit, and what levels promise."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import CPU, examples
from torch import Tensor

from dlgs_bench.exchange.packing import packed_bytes
from dlgs_bench.exchange.quantisation import compiled_backend, decode, encode, ends, norms, subtract, torch_backend
from dlgs_bench.exchange.randomness import uniform

pytestmark = pytest.mark.unit

BITS = (1, 2, 4, 5, 8)
entries = st.one_of(st.floats(-100, 100, width=32), st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, math.inf]))
layers = st.lists(st.integers(0, 90), min_size=1, max_size=5)
seeds = st.integers(0, 2**16)


@st.composite
def vectors(draw) -> tuple[Tensor, int | list[int]]:
    """A vector and its pieces; a few entries are of any kind."""
    pieces = draw(st.one_of(st.integers(1, 40), layers))
    size = draw(st.integers(0, 200)) if isinstance(pieces, int) else sum(pieces)
    vector = torch.randn(size, generator=torch.Generator().manual_seed(draw(seeds)))
    for place, entry in draw(st.lists(st.tuples(st.integers(0, 250), entries), max_size=4)):
        vector[place : place + 1] = entry
    return vector, pieces


def bits_of(vector: Tensor) -> Tensor:
    """Bits for comparison. All NaNs are equal; -0.0 is not 0.0."""
    return torch.where(vector.isnan(), torch.nan, vector).view(torch.int32)


@pytest.mark.parametrize("bits", BITS)
@given(vectors(), seeds, st.booleans(), st.floats(0.01, 2))
@examples(2)
def test_passes_give_the_bits_of_torch_operations(bits, chosen, seed, at_random, part):
    """If ``part`` is below 1, some entries exceed their units."""
    (vector, pieces), numbers = chosen, torch.Generator().manual_seed(seed)
    where = ends(len(vector), pieces)
    units = norms(vector, pieces, math.inf) * part / max(1, 2 ** (bits - 1) - 1)
    drawn = (seed, 1, 2) if at_random else ()
    slow, quick = (way.encode(vector, units, where, bits, drawn) for way in (torch_backend, compiled_backend))
    assert torch.equal(slow, quick) and len(quick) == 4 * len(where) + packed_bytes(len(vector), bits)
    packed = torch.stack([quick[4 * len(where) :]] * 3)
    several = torch.randn(3, len(where), generator=numbers).mul_(units)
    before = torch.randn(len(vector), generator=numbers)
    slow, quick = (
        way.decode(several, packed, where, bits, before.clone()) for way in (torch_backend, compiled_backend)
    )
    assert torch.equal(bits_of(slow), bits_of(quick))
    slow, quick = (
        way.subtract(several[:1], packed[:1], where, bits, before.clone()) for way in (torch_backend, compiled_backend)
    )
    assert torch.equal(bits_of(slow), bits_of(quick))


@given(vectors())
def test_norms_are_those_of_the_pieces(chosen):
    vector, pieces = chosen
    where = ends(len(vector), pieces)
    parts = [vector[a:b] for a, b in pairwise([0, *where.tolist()])]
    expected = torch.tensor([part.abs().max() if len(part) else 0.0 for part in parts])
    for way in (torch_backend, compiled_backend):
        assert torch.equal(way.norms(vector, where, math.inf), expected)
        tame = vector.clamp(-100, 100)
        for p in (1, 2):
            exact = torch.tensor([part.clamp(-100, 100).double().norm(p) for part in parts]).float()
            torch.testing.assert_close(way.norms(tame, where, p), exact)


def test_a_norm_of_many_entries_is_as_exact_as_one_of_few():
    """A sum of 2 ** 25 ones in 32 bits, one by one, would end at 2 ** 24."""
    assert norms(torch.ones(2**25), [2**25], 1).item() == 2**25


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_nan_is_the_norm_of_its_piece_alone_and_is_what_the_piece_decodes_to(p):
    vector = torch.ones(30)
    vector[12] = torch.nan
    for way in (torch_backend, compiled_backend):
        assert way.norms(vector, ends(30, 10), p).isnan().tolist() == [False, True, False]
    found = decode([encode(vector, norms(vector, 10, p), 10, 4)], 10, 4, torch.empty(30))
    assert found.isnan().tolist() == [False] * 10 + [True] * 10 + [False] * 10


@pytest.mark.parametrize("bits", BITS[1:])
@given(st.integers(1, 300), seeds)
def test_an_entry_becomes_the_nearest_level_and_what_is_beyond_them_the_last(bits, size, seed):
    vector, last = torch.randn(size, generator=torch.Generator().manual_seed(seed)), 2 ** (bits - 1) - 1
    units = torch.full((-(-size // 16),), 2.0 / last)  # so that levels end at 2
    found = decode([encode(vector, units, 16, bits)], 16, bits, torch.empty(size))
    torch.testing.assert_close(found * last / 2, (found * last / 2).round())
    assert ((found - vector.clamp(-2, 2)).abs() <= 1.001 / last).all()


@pytest.mark.parametrize("bits", BITS[1:])
@given(st.floats(-1, 1, width=32), seeds)
@examples(0.4)
def test_the_mean_over_draws_is_the_entry(bits, entry, seed):
    many, unit = 100_000, 1 / (2 ** (bits - 1) - 1)
    message = encode(torch.full((many,), entry), torch.tensor([unit]), many, bits, (seed,))
    found = decode([message], many, bits, torch.empty(many)).double()
    chance = entry / unit % 1  # of the upper of two levels; ten draws are slack, where it is almost 0 or 1
    assert abs(found.mean() - entry) <= 6 * unit * (chance * (1 - chance) / many) ** 0.5 + 10 * unit / many
    assert (found - entry).abs().max() <= 1.001 * unit


@given(st.lists(st.floats(-10, 10, width=32, allow_subnormal=False), min_size=1, max_size=50))
def test_a_sign_is_a_bit_and_zero_is_positive(values):
    vector = torch.tensor(values)
    message = encode(vector, torch.tensor([3.0]), [len(vector)], 1)
    found = decode([message], [len(vector)], 1, torch.empty(len(vector)))
    assert torch.equal(found, torch.where(vector >= 0, 3.0, -3.0))
    assert torch.equal(subtract(message, [len(vector)], 1, vector.clone()), vector - found)


def test_draws_follow_from_the_seed_are_uniform_and_unrelated_and_leave_torchs_own():
    torch.manual_seed(0)
    before, size = torch.get_rng_state(), 1_000_000
    one, again, *others = (uniform(CPU, size, *seed) for seed in ((3, 1, 0), (3, 1, 0), (3, 1, 1), (4, 1, 0)))
    assert torch.equal(one, again) and torch.equal(torch.get_rng_state(), before)
    assert one.min() >= 0 and one.max() < 1
    # A count of n draws at chance c has a deviation of sqrt(n c (1 - c)).
    counts = torch.histc(one.double(), 100, 0, 1)
    assert (counts - size / 100).abs().max() <= 5 * (size / 100) ** 0.5
    centred = one.double() - 0.5
    for other in (*others, one.roll(1), one.roll(2), one.roll(4096)):
        correlation = (centred * (other.double() - 0.5)).mean() * 12
        assert abs(correlation) <= 5 / size**0.5
