"""Selection at memory speed on one CPU core (GPUs: ``triton_backend``).

One compiled pass accumulates, compares and compacts. With the sign bit cleared, the bits of float32 numbers have the
order of their magnitudes, with NaN above all, so a comparison with a threshold is an integer comparison. It has no
branch: the pass stores every entry, and advances the store index by the result of the comparison. Top-K does not sort
all entries. A sample gives a bound that slightly more than k entries reach. One pass takes these entries, and those in
excess of k are written back.
"""

import importlib
from types import ModuleType

import numpy as np
import torch
from numba import njit
from torch import Tensor

from dlgs_bench.exchange.selection import NAN, Rule, Threshold, TopK, torch_backend

MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)  # all magnitudes above it are NaN
BLOCK = np.uint64(256)  # entries that stay in the L1 cache between the steps of a pass
LINE, STRIDE = 16, 16 * 61  # a sample is one cache line of every 61
SMALLEST_SAMPLED = 1 << 16  # of a smaller vector, the sample is the whole vector

# Counters are unsigned: for signed ones numba adds a test for negative indices to every access.
ZERO = np.uint64(0)


@njit(cache=True, nogil=True)
def _take_at_least(
    corrected: np.ndarray,
    bits: np.ndarray,
    gradient: np.ndarray,
    least: np.uint32,
    values: np.ndarray,
    indices: np.ndarray,
) -> tuple[np.uint64, bool]:
    """Add ``gradient``, unless it is empty, to ``corrected``, and move the entries whose magnitude is >= ``least``.

    ``bits``: the same memory as ``corrected``. Returns the number of moved entries, and whether one of them is NaN.
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
            index = np.uint64(indices[j])
            values[j] = bits[index]
            nan |= (bits[index] & MAGNITUDE) > INFINITY
            bits[index] = 0
    return n, nan


@njit(cache=True, nogil=True)
def _copy_at_least(bits: np.ndarray, least: np.uint32, magnitudes: np.ndarray) -> np.uint64:
    """Copy the magnitudes >= ``least``, and return their number."""
    n = ZERO
    for b in bits:
        magnitudes[n] = b & MAGNITUDE
        n += np.uint64((b & MAGNITUDE) >= least)
    return n


@njit(cache=True, nogil=True)
def _restore_below(bits: np.ndarray, values: np.ndarray, indices: np.ndarray, kth: np.uint32, ties: int) -> None:
    """Write the entries below ``kth``, and ties after the first ``ties``, back to ``bits``, and close the gaps."""
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
    # A threshold of zero selects all entries that are not zero: the smallest magnitude above zero has the bits 1.
    return max(np.uint32(1), np.float32(h).view(np.uint32))


def _bound(corrected: np.ndarray, gradient: np.ndarray, k: int) -> np.uint32:
    """A bound, as magnitude bits, that slightly more than k entries of ``corrected`` + gradient are expected to reach.

    It is estimated from a sample, so fewer than k entries may reach it.
    """
    sample_k = k
    if corrected.size >= SMALLEST_SAMPLED:
        corrected, gradient = (
            a[: a.size // STRIDE * STRIDE].reshape(-1, STRIDE)[:, :LINE] for a in (corrected, gradient)
        )
        expected = k * LINE / STRIDE
        sample_k = int(expected + 4 * expected**0.5 + 4)  # four standard deviations above the expected count
    with np.errstate(over="ignore", invalid="ignore"):
        sample = (corrected + gradient if gradient.size else corrected).ravel().view(np.uint32) & MAGNITUDE
    return _kth(sample, sample_k)[0] if sample_k <= sample.size else np.uint32(0)


def _kth(magnitudes: np.ndarray, k: int) -> tuple[np.uint32, int]:
    """The k-th largest magnitude, and how many of the k largest are equal to it; reorders ``magnitudes``."""
    index = magnitudes.size - k
    magnitudes.partition(index)
    return magnitudes[index], int(np.count_nonzero(magnitudes[index:] == magnitudes[index]))


def _fits(corrected: Tensor) -> bool:
    return corrected.dtype == torch.float32 and corrected.device.type == "cpu"


def _other(corrected: Tensor) -> ModuleType:
    """The module for tensors that are not float32 on a CPU."""
    if corrected.is_cuda:
        # Imported by name: an edit of that module then does not change the fingerprint of a run on CPUs.
        triton_backend = importlib.import_module("dlgs_bench.exchange.selection.triton_backend")
        if triton_backend.fits(corrected):
            return triton_backend
    return torch_backend


def workspace(corrected: Tensor) -> Tensor | None:
    """Memory for the result of ``take``: int32, shape (2d,). The kernel backs only the pages that are written to."""
    return torch.empty(2 * corrected.numel(), dtype=torch.int32) if _fits(corrected) else None


def take(
    corrected: Tensor, rule: Rule, gradient: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Take entries, as ``torch_backend.take`` does; the indices are int32 and sorted. Of ties, the lowest index wins.

    For float32 on a CPU, the indices follow the values in memory, so both can be sent without a copy.
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
    if nan:  # NaN ranks above every threshold, so every NaN was taken
        raise FloatingPointError(NAN)
    if isinstance(rule, TopK):
        if n < rule.k:  # the bound was too high: take all entries
            bits[indices[:n]] = values[:n]
            n, _ = _take_at_least(floats, bits, floats[:0], np.uint32(0), values, indices)
        if n > rule.k:
            _restore_below(bits, values[:n], indices[:n], *_kth(values[:n] & MAGNITUDE, rule.k))
            n = rule.k
    both.numpy()[n : 2 * n] = indices[:n]
    return both[:n].view(torch.float32), both[n : 2 * n]


def take_at_most(
    corrected: Tensor, rule: TopK | Threshold, most: int, gradient: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Take entries, as ``torch_backend.take_at_most`` does, which also serves CPUs: they are never asynchronous."""
    return _other(corrected).take_at_most(corrected, rule, most, gradient)


def kth_magnitude(corrected: Tensor, k: int) -> float:
    """The k-th largest magnitude, as in ``torch_backend.kth_magnitude``."""
    if not _fits(corrected):
        return _other(corrected).kth_magnitude(corrected, k)
    floats = corrected.numpy()
    magnitudes = np.empty(corrected.numel(), np.uint32)
    n = _copy_at_least(floats.view(np.uint32), _bound(floats, floats[:0], k), magnitudes)
    if n < k:  # the bound was too high: copy all magnitudes
        n = _copy_at_least(floats.view(np.uint32), np.uint32(0), magnitudes)
    if (magnitudes[:n] > INFINITY).any():
        raise FloatingPointError(NAN)
    return float(_kth(magnitudes[:n], k)[0].view(np.float32))
