"""Quantisation of float32 at memory speed on one CPU core, by compiled passes whose inner loops have no branch.

Codes are packed as in ``packing.pack``: with m bytes of codes, code i is in byte i mod m. A byte holds 8 / bits codes,
in slots. A pass goes over the bytes once per slot, piece by piece. To shift a code to its slot, it is multiplied by a
power of two as a float. This is exact, and avoids the 64-bit integers that numba uses for all integer arithmetic. Codes
of 3, 5, 6 or 7 bits are coded in bytes, and torch packs them.
"""

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from dlgs_bench.exchange.packing import pack, packed_bytes, planes_of, unpack
from dlgs_bench.exchange.quantisation import levels

MAGNITUDE = np.uint32(0x7FFFFFFF)  # all bits of a float32 except its sign: they have the order of its magnitude
CACHED = 4096  # entries that stay in the L1 cache


def norms(vector: Tensor, ends: np.ndarray, p: float) -> Tensor:
    result = np.empty(len(ends), np.float32)
    if p == math.inf:
        _largest(vector.numpy().view(np.uint32), ends, result.view(np.uint32))
    else:
        _norms(vector.numpy(), ends, p, result)
    return torch.from_numpy(result)


def encode(vector: Tensor, units: Tensor, ends: np.ndarray, bits: int, seed: tuple[int, ...]) -> Tensor:
    to, width = levels(bits), _width(bits)
    packed = np.zeros(packed_bytes(len(vector), width), np.uint8)
    floats = np.float32(to.lowest), np.float32(to.highest), np.float32(to.half)
    _encode(vector.numpy(), units.numpy(), ends, *floats, width, bool(seed), *_keys(seed), packed)
    codes = torch.from_numpy(packed)
    return torch.cat([units.view(torch.uint8), codes]) if width == bits else pack(units, codes, bits)


def decode(units: Tensor, packed: Tensor, ends: np.ndarray, bits: int, out: Tensor) -> Tensor:
    _sum(units.numpy(), _codes(packed, bits, len(out)), ends, *_decoding(bits), True, out.numpy())
    return out


def subtract(units: Tensor, packed: Tensor, ends: np.ndarray, bits: int, out: Tensor) -> Tensor:
    _sum(-units.numpy(), _codes(packed, bits, len(out)), ends, *_decoding(bits), False, out.numpy())
    return out


def uniform(size: int, seed: tuple[int, ...]) -> Tensor:
    """Uniform random numbers, as in ``randomness.uniform``."""
    numbers = np.empty(size, np.float32)
    _uniform(numbers, *_keys(seed))
    return torch.from_numpy(numbers)


def _keys(seed: tuple[int, ...]) -> tuple[np.uint32, np.uint32]:
    """The two keys of ``_draw`` that a seed gives."""
    return tuple(np.random.SeedSequence(seed).generate_state(2, np.uint32))


def _decoding(bits: int) -> tuple[np.float32, np.float32, int]:
    to = levels(bits)
    return np.float32(to.lowest), np.float32(to.step), _width(bits)


def _width(bits: int) -> int:
    """The bits of a slot in the passes. Codes of several planes have bytes of their own there."""
    return bits if len(planes_of(bits)) == 1 else 8


def _codes(packed: Tensor, bits: int, size: int) -> np.ndarray:
    """The codes of messages, (messages, bytes), as the passes read them."""
    if _width(bits) == bits:
        return packed.numpy()
    return torch.stack([unpack(message, 0, bits, size)[1] for message in packed]).numpy()


@njit(cache=True, nogil=True)
def _largest(bits: np.ndarray, ends: np.ndarray, result: np.ndarray) -> None:
    start = 0
    for piece in range(ends.size):
        most, part = np.uint32(0), bits[start : ends[piece]]
        for i in range(part.size):
            magnitude = np.uint32(part[i] & MAGNITUDE)
            most = magnitude if magnitude > most else most
        result[piece] = most
        start = ends[piece]


# "reassoc" allows another order of additions, so the compiler can vectorise the sum.
@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum_of_magnitudes(part: np.ndarray) -> np.float32:
    total = np.float32(0)
    for i in range(part.size):
        total += abs(part[i])
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum_of_squares(part: np.ndarray) -> np.float64:
    """The sum of squares in 64 bits: squares of float32 would overflow and underflow."""
    total = np.float64(0)
    for i in range(part.size):
        entry = np.float64(part[i])
        total += entry * entry
    return total


@njit(cache=True, nogil=True)
def _norms(vector: np.ndarray, ends: np.ndarray, p: int, result: np.ndarray) -> None:
    start = 0
    for piece in range(ends.size):
        total = 0.0  # in 64 bits, since a layer may have millions of entries
        while start < ends[piece]:
            stop = min(ends[piece], start + CACHED)
            total += _sum_of_magnitudes(vector[start:stop]) if p == 1 else _sum_of_squares(vector[start:stop])
            start = stop
        result[piece] = total if p == 1 else np.sqrt(total)


@njit(cache=True, nogil=True)
def _draw(index: int, first: np.uint32, second: np.uint32) -> np.float32:
    """The uniform random number at an index below 2 ** 32, for the keys ``first`` and ``second``."""
    mixed = _mix(np.uint32(_mix(np.uint32(np.uint32(index) ^ first)) ^ second))
    return np.float32(np.int32(mixed >> np.uint32(8))) * np.float32(2**-24)


@njit(cache=True, nogil=True)
def _uniform(numbers: np.ndarray, first: np.uint32, second: np.uint32) -> None:
    for i in range(numbers.size):
        numbers[i] = _draw(i, first, second)


@njit(cache=True, nogil=True)
def _mix(x: np.uint32) -> np.uint32:
    """A hash of 32 bits in which every bit depends on all bits of x (the last step of MurmurHash3, by Appleby)."""
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(cache=True, nogil=True)
def _round_down(x: np.float32, lowest: np.float32, highest: np.float32) -> np.float32:
    x = x if x > lowest else lowest  # NaN becomes the lowest
    return np.floor(x if x < highest else highest)


@njit(cache=True, nogil=True, error_model="numpy")
def _encode(
    vector: np.ndarray,
    units: np.ndarray,
    ends: np.ndarray,
    lowest: np.float32,
    highest: np.float32,
    half: np.float32,
    bits: int,
    at_random: bool,
    first_key: np.uint32,
    second_key: np.uint32,
    packed: np.ndarray,
) -> None:
    """Write codes to ``packed``, which is all zeros."""
    start = piece = 0
    for slot in range(8 // bits):
        first = slot * packed.size
        shift = np.float32(1 << bits * slot)
        while start < min(first + packed.size, vector.size):
            while ends[piece] <= start:
                piece += 1
            stop = min(ends[piece], first + packed.size)
            part, codes = vector[start:stop], packed[start - first : stop - first]
            unit = units[piece] if units[piece] > 0 else np.float32(1)
            if at_random:
                for i in range(part.size):
                    x = part[i] / unit + _draw(start + i, first_key, second_key)
                    codes[i] |= np.uint8((_round_down(x, lowest, highest) - lowest) * shift)
            else:
                for i in range(part.size):
                    codes[i] |= np.uint8((_round_down(part[i] / unit + half, lowest, highest) - lowest) * shift)
            start = stop


@njit(cache=True, nogil=True)
def _sum(
    units: np.ndarray,
    packed: np.ndarray,
    ends: np.ndarray,
    lowest: np.float32,
    step: np.float32,
    bits: int,
    fresh: bool,
    out: np.ndarray,
) -> None:
    """Add the vectors in the messages to ``out``; with ``fresh``, overwrite ``out`` with their sum."""
    start = piece = 0
    size = packed.shape[1]
    for slot in range(8 // bits):
        first = slot * size
        mask = np.uint8((1 << bits) - 1 << bits * slot)
        step_here = step / np.float32(1 << bits * slot)
        while start < min(first + size, out.size):
            while ends[piece] <= start:
                piece += 1
            stop = min(ends[piece], first + size, start + CACHED)
            part = out[start:stop]
            if fresh:
                part[:] = 0
            for message in range(len(units)):
                unit, codes = units[message, piece], packed[message, start - first : stop - first]
                for i in range(part.size):
                    part[i] += (np.float32(np.uint8(codes[i] & mask)) * step_here + lowest) * unit
            start = stop
