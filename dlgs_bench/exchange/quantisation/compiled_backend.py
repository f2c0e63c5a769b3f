"""Quantisation at memory speed on one CPU core, float32: compiled passes, whose inner loops have no branch.

Codes are packed as ``packing.pack`` has it: with m bytes of codes, code i lies in byte i mod m. A pass goes over the
bytes once for each place in them, piece by piece. Codes are shifted to their place as floats, times a power of two:
that is exact, and keeps integers of 64 bits, which numba makes of all others, out of the loop.
"""

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from dlgs_bench.exchange.quantisation import levels

MAGNITUDE = np.uint32(0x7FFFFFFF)  # a float32's bits but its sign: they order as its magnitude does, NaN above all
CACHED = 4096  # entries that stay in the first cache


def norms(vector: Tensor, ends: np.ndarray, p: float) -> Tensor:
    found = np.empty(len(ends), np.float32)
    if p == math.inf:
        _largest(vector.numpy().view(np.uint32), ends, found.view(np.uint32))
    else:
        _norms(vector.numpy(), ends, p, found)
    return torch.from_numpy(found)


def encode(vector: Tensor, units: Tensor, ends: np.ndarray, bits: int, seed: tuple[int, ...]) -> Tensor:
    to, packed = levels(bits), np.zeros(-(-len(vector) * bits // 8), np.uint8)
    floats = np.float32(to.lowest), np.float32(to.highest), np.float32(to.half)
    _encode(vector.numpy(), units.numpy(), ends, *floats, bits, bool(seed), *_keys(seed), packed)
    return torch.cat([units.view(torch.uint8), torch.from_numpy(packed)])


def decode(units: Tensor, packed: Tensor, ends: np.ndarray, bits: int, out: Tensor) -> Tensor:
    _sum(units.numpy(), packed.numpy(), ends, *_decoding(bits), True, out.numpy())
    return out


def subtract(units: Tensor, packed: Tensor, ends: np.ndarray, bits: int, out: Tensor) -> Tensor:
    _sum(-units.numpy(), packed.numpy(), ends, *_decoding(bits), False, out.numpy())
    return out


def uniform(size: int, seed: tuple[int, ...]) -> Tensor:
    """As ``randomness.uniform``."""
    numbers = np.empty(size, np.float32)
    _uniform(numbers, *_keys(seed))
    return torch.from_numpy(numbers)


def _keys(seed: tuple[int, ...]) -> tuple[np.uint32, np.uint32]:
    """What ``_draw`` needs of a seed."""
    return tuple(np.random.SeedSequence(seed).generate_state(2, np.uint32))


def _decoding(bits: int) -> tuple[np.float32, np.float32, int]:
    to = levels(bits)
    return np.float32(to.lowest), np.float32(to.step), bits


@njit(cache=True, nogil=True)
def _largest(bits, ends, found):
    start = 0
    for piece in range(ends.size):
        most, part = np.uint32(0), bits[start : ends[piece]]
        for i in range(part.size):
            magnitude = np.uint32(part[i] & MAGNITUDE)
            most = magnitude if magnitude > most else most
        found[piece] = most
        start = ends[piece]


# To add in another order than one by one is what lets a sum be several at a time.
@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum_of_magnitudes(part):
    total = np.float32(0)
    for i in range(part.size):
        total += abs(part[i])
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _sum_of_squares(part):
    """Of 64 bits: squares of float32 would over- and underflow."""
    total = np.float64(0)
    for i in range(part.size):
        entry = np.float64(part[i])
        total += entry * entry
    return total


@njit(cache=True, nogil=True)
def _norms(vector, ends, p, found):
    start = 0
    for piece in range(ends.size):
        total = 0.0  # of 64 bits: a layer may have millions of entries
        while start < ends[piece]:
            stop = min(ends[piece], start + CACHED)
            total += _sum_of_magnitudes(vector[start:stop]) if p == 1 else _sum_of_squares(vector[start:stop])
            start = stop
        found[piece] = total if p == 1 else np.sqrt(total)


@njit(cache=True, nogil=True)
def _draw(place, first, second):
    """The uniform number at a place below 2 ** 32, of two keys."""
    mixed = _mix(np.uint32(_mix(np.uint32(np.uint32(place) ^ first)) ^ second))
    return np.float32(np.int32(mixed >> np.uint32(8))) * np.float32(2**-24)


@njit(cache=True, nogil=True)
def _uniform(numbers, first, second):
    for i in range(numbers.size):
        numbers[i] = _draw(i, first, second)


@njit(cache=True, nogil=True)
def _mix(x):
    """Every bit of 32 depends on all of them (the last step of MurmurHash3, by Appleby)."""
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(cache=True, nogil=True)
def _round_down(x, lowest, highest):
    x = x if x > lowest else lowest  # NaN becomes the lowest
    return np.floor(x if x < highest else highest)


@njit(cache=True, nogil=True, error_model="numpy")
def _encode(vector, units, ends, lowest, highest, half, bits, at_random, first_key, second_key, packed):
    """Write codes to ``packed``, which is zero."""
    start = piece = 0
    for place in range(8 // bits):
        first = place * packed.size
        shift = np.float32(1 << bits * place)
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
def _sum(units, packed, ends, lowest, step, bits, fresh, out):
    """Add what the messages stand for to ``out``, or with ``fresh`` to zeros in its place."""
    start = piece = 0
    size = packed.shape[1]
    for place in range(8 // bits):
        first = place * size
        mask = np.uint8((1 << bits) - 1 << bits * place)
        step_here = step / np.float32(1 << bits * place)
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
