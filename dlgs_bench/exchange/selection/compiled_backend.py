"""Selection at memory speed on one CPU core (GPUs: ``triton_backend``): one compiled pass accumulates, compares,
compacts.

With the sign bit cleared, the bits of a float32 order as its magnitude does, NaN above all, so thresholds
are integer comparisons; they cost nothing when written without a branch: always store, and advance the
place to store to by the comparison's value. Top-K needs no sort of all: a sample gives a bound that
slightly more than k entries reach, one pass takes those, and what is too much of them is put back.
"""

import importlib

import numpy as np
import torch
from numba import njit
from torch import Tensor

from dlgs_bench.exchange.selection import NAN, Rule, Threshold, TopK, torch_backend

MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)  # the magnitudes above it are NaN
BLOCK = np.uint64(256)  # entries that stay in the first cache between the steps of a pass
LINE, STRIDE = 16, 16 * 61  # a sample is one cache line of every 61
SMALLEST_SAMPLED = 1 << 16  # below, the sample is everything

# Counters are unsigned: for signed ones numba adds a test for negative indices to every access.
ZERO = np.uint64(0)


@njit(cache=True, nogil=True)
def _take_at_least(corrected, bits, gradient, least, values, indices):
    """Add ``gradient``, unless empty, to ``corrected`` (its ``bits``) and move the magnitudes >= ``least`` out.

    Returns how many, and whether NaN is among them.
    """
    n, size, nan = ZERO, np.uint64(corrected.size), False
    for start in range(ZERO, size, BLOCK):
        stop = min(start + BLOCK, size)
        if gradient.size:
            part, more = corrected[start:stop], gradient[start:stop]
            for i in range(part.size):
                part[i] += more[i]
        first = n
        for i in range(start, stop):
            indices[n] = i
            n += np.uint64((bits[i] & MAGNITUDE) >= least)
        for j in range(first, n):
            i = np.uint64(indices[j])
            values[j] = bits[i]
            nan |= (bits[i] & MAGNITUDE) > INFINITY
            bits[i] = 0
    return n, nan


@njit(cache=True, nogil=True)
def _copy_at_least(bits, least, magnitudes):
    """Copy the magnitudes >= ``least``; return how many."""
    n = ZERO
    for b in bits:
        magnitudes[n] = b & MAGNITUDE
        n += np.uint64((b & MAGNITUDE) >= least)
    return n


@njit(cache=True, nogil=True)
def _put_back_below(bits, values, indices, kth, ties):
    """Return what is below ``kth`` to ``bits``, and what equals it after the first ``ties``; close the gaps."""
    n = 0
    for i in range(values.size):
        magnitude = values[i] & MAGNITUDE
        tie = magnitude == kth
        if magnitude > kth or (tie and ties > 0):
            ties -= tie
            values[n], indices[n] = values[i], indices[i]
            n += 1
        else:
            bits[indices[i]] = values[i]


def _bits_of(h: float) -> np.uint32:
    # A zero threshold takes what is not zero: the smallest magnitude above zero has the bits 1.
    return max(np.uint32(1), np.float32(h).view(np.uint32))


def _bound(corrected: np.ndarray, gradient: np.ndarray, k: int) -> np.uint32:
    """Magnitude bits that k entries of ``corrected`` + gradient or slightly more reach, going by a sample; maybe
    fewer."""
    share = k
    if corrected.size >= SMALLEST_SAMPLED:
        corrected, gradient = (
            a[: a.size // STRIDE * STRIDE].reshape(-1, STRIDE)[:, :LINE] for a in (corrected, gradient)
        )
        expected = k * LINE / STRIDE
        share = int(expected + 4 * expected**0.5 + 4)  # four standard deviations of a count, to be safe
    with np.errstate(over="ignore", invalid="ignore"):
        sample = (corrected + gradient if gradient.size else corrected).ravel().view(np.uint32) & MAGNITUDE
    return _kth(sample, share)[0] if share <= sample.size else np.uint32(0)


def _kth(magnitudes: np.ndarray, k: int) -> tuple[np.uint32, int]:
    """The k-th largest of ``magnitudes``, and how many of the first k equal it; reorders them."""
    place = magnitudes.size - k
    magnitudes.partition(place)
    return magnitudes[place], int(np.count_nonzero(magnitudes[place:] == magnitudes[place]))


def _fits(corrected: Tensor) -> bool:
    return corrected.dtype == torch.float32 and corrected.device.type == "cpu"


def _other(corrected: Tensor):
    """The module for tensors that are not float32 on CPU."""
    if corrected.is_cuda:
        # By name: a run on a CPU does not execute it, so an edit there must not repeat such a run.
        triton_backend = importlib.import_module("dlgs_bench.exchange.selection.triton_backend")
        if triton_backend.fits(corrected):
            return triton_backend
    return torch_backend


def workspace(corrected: Tensor) -> Tensor | None:
    """As ``torch_backend.room``: int32, shape (2d,). The kernel backs only the pages that are written to."""
    return torch.empty(2 * corrected.numel(), dtype=torch.int32) if _fits(corrected) else None


def take(
    corrected: Tensor, rule: Rule, gradient: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As ``torch_backend.take``; int32 indices, rising. Ties go to the lowest index.

    On CPU, for float32, indices follow the values in memory, so that both can travel as they lie.
    """
    if not _fits(corrected) or isinstance(rule, Tensor):
        return _other(corrected).take(corrected, rule, gradient)
    floats = corrected.numpy()
    bits = floats.view(np.uint32)
    added = floats[:0] if gradient is None else gradient.numpy()
    both = torch.empty(2 * bits.size, dtype=torch.int32) if workspace is None else workspace
    values, indices = both.numpy().view(np.uint32)[: bits.size], both.numpy()[bits.size :]
    least = _bits_of(rule.h) if isinstance(rule, Threshold) else _bound(floats, added, rule.k)
    n, nan = _take_at_least(floats, bits, added, least, values, indices)
    if nan:  # it ranks above every threshold: if there is one, it was taken
        raise FloatingPointError(NAN)
    if isinstance(rule, TopK):
        if n < rule.k:  # the sample misled: take all
            bits[indices[:n]] = values[:n]
            n, _ = _take_at_least(floats, bits, floats[:0], np.uint32(0), values, indices)
        if n > rule.k:
            _put_back_below(bits, values[:n], indices[:n], *_kth(values[:n] & MAGNITUDE, rule.k))
            n = rule.k
    both.numpy()[n : 2 * n] = indices[:n]
    return both[:n].view(torch.float32), both[n : 2 * n]


def take_at_most(
    corrected: Tensor, rule: TopK | Threshold, most: int, gradient: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``torch_backend.take_at_most``, which does it on CPUs, where no host has a reason to ask."""
    return _other(corrected).take_at_most(corrected, rule, most, gradient)


def kth_magnitude(corrected: Tensor, k: int) -> float:
    """As ``torch_backend.kth_magnitude``."""
    if not _fits(corrected):
        return _other(corrected).kth_magnitude(corrected, k)
    floats = corrected.numpy()
    magnitudes = np.empty(corrected.numel(), np.uint32)
    n = _copy_at_least(floats.view(np.uint32), _bound(floats, floats[:0], k), magnitudes)
    if n < k:  # the sample misled: all
        n = _copy_at_least(floats.view(np.uint32), np.uint32(0), magnitudes)
    if (magnitudes[:n] > INFINITY).any():
        raise FloatingPointError(NAN)
    return float(_kth(magnitudes[:n], k)[0].view(np.float32))
