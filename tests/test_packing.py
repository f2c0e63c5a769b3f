"""Codes in bytes, signs with their places, random numbers of a method's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import CPU

from dlgs_bench.exchange.packing import (
    add_signs,
    blocks,
    join,
    pack,
    pack_indices,
    pack_signs,
    packed_bytes,
    split,
    unpack,
    unpack_indices,
)
from dlgs_bench.exchange.randomness import generator

pytestmark = pytest.mark.unit


@given(st.integers(0, 100), st.integers(1, 8), st.integers(0, 5), st.integers(0, 2**16))
def test_what_is_packed_is_unpacked_and_takes_its_bits(size, bits, floats, seed):
    numbers = torch.Generator().manual_seed(seed)
    codes = torch.randint(2**bits, (size,), generator=numbers, dtype=torch.uint8)
    scales = torch.randn(floats, generator=numbers)
    message = pack(scales, codes, bits)
    assert message.dtype == torch.uint8 and len(message) == 4 * floats + packed_bytes(size, bits)
    planes = bin(bits).count("1")  # a plane has whole bytes
    assert 0 <= packed_bytes(size, bits) - size * bits / 8 < planes
    found_scales, found_codes = unpack(message, floats, bits, size)
    assert torch.equal(found_scales, scales) and torch.equal(found_codes, codes)


@given(st.lists(st.tuples(st.sampled_from(["uint8", "int16", "float32", "int64"]), st.integers(0, 9)), min_size=1))
def test_what_is_joined_is_split(parts):
    tensors = [torch.arange(2 * n).to(getattr(torch, dtype)).view(2, n) for dtype, n in parts]
    message = join(*tensors)
    assert message.dtype == torch.uint8 and message.nbytes == sum(t.nbytes for t in tensors)
    # An odd byte before it: what arrives need not be aligned.
    found = split(torch.cat([message[:1], message])[1:], *tensors)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, tensors, strict=True))


@given(st.lists(st.integers(0, 4095), max_size=40), st.integers(0, 5))
def test_places_take_12_bits_and_come_back_from_the_end_of_a_message(places, before):
    places, rest = torch.tensor(places, dtype=torch.int64).view(-1, 1), torch.arange(before, dtype=torch.uint8)
    packed = pack_indices(places)
    assert packed.dtype == torch.uint8 and len(packed) == -(-12 * len(places) // 8)
    found_rest, found = unpack_indices(torch.cat([rest, packed]), places.shape)
    assert torch.equal(found_rest, rest) and torch.equal(found, places)


@given(st.sets(st.integers(0, 2**30 - 1), max_size=20), st.integers(0, 2**16))
def test_a_place_and_a_sign_are_one_word(places, seed):
    places = torch.tensor(sorted(places), dtype=torch.int64)
    negative = torch.rand(len(places), generator=torch.Generator().manual_seed(seed)) < 0.5
    message = pack_signs(places, negative)
    assert message.dtype == torch.int32 and message.shape == places.shape
    assert torch.equal(message >> 1, places.int()) and torch.equal(message & 1 > 0, negative)


def test_signs_are_added_where_they_belong():
    out = torch.tensor([1.0, 2.0, 3.0, 4.0])
    add_signs(out, pack_signs(torch.tensor([3, 0]), torch.tensor([True, False])), 0.5)
    assert out.tolist() == [1.5, 2.0, 3.0, 3.5]


def test_the_last_block_is_filled_up_with_zeros():
    assert blocks(torch.tensor([1.0, 2.0, 3.0]), 2).tolist() == [[1.0, 2.0], [3.0, 0.0]]


def test_random_numbers_follow_from_the_seed_alone_and_leave_torchs_own():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    drawn = {seed: torch.rand(4, generator=generator(CPU, *seed)) for seed in ((0, 1), (1, 0), (0, 2), (2**40, 3))}
    assert torch.equal(torch.rand(4, generator=generator(CPU, 0, 1)), drawn[0, 1])
    assert len({tuple(numbers.tolist()) for numbers in drawn.values()}) == len(drawn)
    assert torch.equal(torch.get_rng_state(), before)
