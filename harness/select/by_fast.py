"""Selection at memory speed on one CPU core: compiled passes over the floats' bits.

With the sign bit cleared, the bits of a float32 order as its magnitude does, so thresholds are integer
comparisons; they cost nothing when written without a branch: always store, and advance the place to
store to by the comparison's value. Top-K needs no sort: one pass counts the magnitudes by their upper
16 bits, one takes what is above the bin that holds the k-th, and only that bin is looked at closer.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from harness.select import NAN, Rule, Threshold, TopK, by_torch

MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)  # the magnitudes above it are NaN
LOW_BITS = np.uint32(15)  # of the 31 bits of a magnitude, the histogram looks at the upper 16
BINS = 1 << 16


@njit(cache=True, nogil=True)
def _histogram(bits, counts):
    """Count the magnitudes by their upper bits."""
    for b in bits:
        counts[(b & MAGNITUDE) >> LOW_BITS] += 1


@njit(cache=True, nogil=True)
def _take_at_least(bits, least, values, indices):
    """Move the entries of magnitude >= ``least`` (bits) out of ``bits``; return how many."""
    n = 0
    for i in range(bits.size):
        b = bits[i]
        taken = np.uint32((b & MAGNITUDE) >= least)
        values[n] = b
        indices[n] = i
        n += taken
        bits[i] = b * (np.uint32(1) - taken)
    return n


@njit(cache=True, nogil=True)
def _collect_bin(bits, lowest, above, magnitudes):
    """Copy the magnitudes in [lowest, above); return how many."""
    n = 0
    for b in bits:
        magnitude = b & MAGNITUDE
        magnitudes[n] = magnitude
        n += (magnitude >= lowest) & (magnitude < above)
    return n


@njit(cache=True, nogil=True)
def _put_back_ties(bits, values, indices, n, smallest, surplus):
    """Return the last ``surplus`` entries of magnitude ``smallest`` to ``bits``; close the gaps."""
    ties = 0
    for i in range(n):
        ties += (values[i] & MAGNITUDE) == smallest
    kept_ties, m = ties - surplus, 0
    for i in range(n):
        tie = (values[i] & MAGNITUDE) == smallest
        if tie and kept_ties == 0:
            bits[indices[i]] = values[i]
            continue
        kept_ties -= tie
        values[m], indices[m] = values[i], indices[i]
        m += 1
    return m


def _bits(acc: Tensor) -> np.ndarray:
    return acc.numpy().view(np.uint32)


def _bits_of(h: float) -> np.uint32:
    # A zero threshold takes what is not zero: the smallest magnitude above zero has the bits 1.
    return max(np.uint32(1), np.float32(h).view(np.uint32))


def _refuse_nan(bits: np.ndarray) -> None:
    if ((bits & MAGNITUDE) > INFINITY).any():
        raise FloatingPointError(NAN)


def _kth_bits(bits: np.ndarray, k: int) -> np.uint32:
    """The bits of the k-th largest magnitude."""
    counts = np.zeros(BINS, np.int64)
    _histogram(bits, counts)
    if counts[INFINITY >> LOW_BITS :].any():
        _refuse_nan(bits)
    from_top = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_top, k))  # bins from the top, before the one that holds the k-th
    bin_ = BINS - 1 - place
    before = int(from_top[place] - counts[bin_])
    within = np.empty(int(counts[bin_]) + 1, np.uint32)
    n = _collect_bin(bits, np.uint32(bin_ << 15), np.uint32((bin_ + 1) << 15), within)
    rank = n - (k - before)
    return np.partition(within[:n], rank)[rank]


def take(acc: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """As ``by_torch.take``, for float32 on CPU; int32 indices, rising. Ties go to the lowest index."""
    if acc.dtype != torch.float32 or acc.device.type != "cpu" or isinstance(rule, Tensor):
        return by_torch.take(acc, rule)
    bits = _bits(acc)
    match rule:
        case Threshold(h):
            least = _bits_of(h)
        case TopK(k):
            least = _kth_bits(bits, k)
    values, indices = np.empty(bits.size, np.uint32), np.empty(bits.size, np.int32)
    n = _take_at_least(bits, least, values, indices)
    _refuse_nan(values[:n])  # NaN ranks above every threshold: if there is one, it was taken
    if isinstance(rule, TopK) and n > rule.k:
        n = _put_back_ties(bits, values, indices, n, least, n - rule.k)
    return torch.from_numpy(values[:n].view(np.float32)), torch.from_numpy(indices[:n])


def kth_magnitude(acc: Tensor, k: int) -> float:
    """As ``by_torch.kth_magnitude``, for float32 on CPU."""
    if acc.dtype != torch.float32 or acc.device.type != "cpu":
        return by_torch.kth_magnitude(acc, k)
    return float(_kth_bits(_bits(acc), k).view(np.float32))
