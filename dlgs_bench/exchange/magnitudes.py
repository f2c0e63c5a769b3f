"""Magnitudes that reach a threshold, and the largest of a row: found without sorting all.

Of float32 on CPUs by compiled passes at the speed of memory, else by torch operations, which choose the same entries.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from dlgs_bench.exchange.quantisation import Pieces, ends, fits

MAGNITUDE = np.uint32(0x7FFFFFFF)  # a float32's bits but its sign, which order as its magnitude does
CACHED = 4096  # entries that stay in the first cache
TINY = np.float32(1e-45)  # the smallest magnitude above zero


def count_at_least(vector: Tensor, h: float) -> tuple[int, float]:
    """How many magnitudes of ``vector``, shape (n,), are at least ``h`` and not zero, and their sum."""
    if not fits(vector):
        return count_at_least_by_torch(vector, h)
    return _reached(vector.numpy(), max(np.float32(h), TINY))


def count_at_least_by_torch(vector: Tensor, h: float) -> tuple[int, float]:
    magnitudes = vector.abs()
    magnitudes = magnitudes[(magnitudes >= h) & (magnitudes > 0)]
    return len(magnitudes), magnitudes.sum(dtype=torch.float64).item()


def indices_at_least(vector: Tensor, thresholds: Tensor, pieces: Pieces) -> Tensor:
    """The indices, int64 and rising, of the entries of ``vector``, shape (n,), whose magnitude is at least the
    threshold, shape (pieces,), of their piece, as ``quantisation`` has pieces, and not zero; NaN is among them."""
    where = ends(len(vector), pieces)
    if not fits(vector):
        return at_least_by_torch(vector, thresholds, where)
    indices = np.empty(len(vector) + 1, np.int64)  # the kernel backs only the pages that are written to
    n = _at_least(vector.numpy(), thresholds.numpy(), where, indices)
    return torch.from_numpy(indices[:n])


def at_least_by_torch(vector: Tensor, thresholds: Tensor, where: np.ndarray) -> Tensor:
    lengths = torch.from_numpy(np.diff(where, prepend=0)).to(vector.device)
    h = thresholds.repeat_interleave(lengths)
    # Not "< h", rather than ">= h": then NaN is chosen.
    return (~(vector.abs() < h) & (vector != 0)).nonzero().view(-1)


def largest_in_rows(rows: Tensor, k: int) -> Tensor:
    """The places, int64 (n, min(k, m)) and rising, of the k largest magnitudes in each row of ``rows``, shape (n, m).

    NaN is above all; among equals any may be chosen, on CPUs the first.
    """
    k = min(k, rows.shape[1])
    if not fits(rows):
        return largest_in_rows_by_torch(rows, k)
    places = np.empty((len(rows), k), np.int64)
    _largest_in_rows(rows.contiguous().numpy().view(np.uint32), places)
    return torch.from_numpy(places)


def largest_in_rows_by_torch(rows: Tensor, k: int) -> Tensor:
    return rows.abs().topk(k).indices.sort().values


# To add in another order than one by one is what lets a sum be several at a time.
@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _reached(vector, h):
    many, total = 0.0, 0.0
    for start in range(0, vector.size, CACHED):
        part = vector[start : start + CACHED]
        n, some = np.float32(0), 0.0  # of 64 bits, as in torch: large entries do not overflow
        for i in range(part.size):
            magnitude = abs(part[i])
            n += np.float32(1) if magnitude >= h else np.float32(0)
            some += np.float64(magnitude) if magnitude >= h else 0.0
        many += n
        total += some
    return int(many), total


@njit(cache=True, nogil=True)
def _at_least(vector, thresholds, ends, indices):
    n = np.uint64(0)
    start = 0
    for piece in range(ends.size):
        part, h = vector[start : ends[piece]], thresholds[piece]
        for i in range(part.size):
            indices[n] = start + i
            n += np.uint64((not abs(part[i]) < h) & (part[i] != 0))
        start = ends[piece]
    return n


@njit(cache=True, nogil=True)
def _largest_in_rows(rows, places):
    """Of a row's groups of entries, the k-th largest maximum bounds the k-th largest entry from below: only what
    reaches it is ranked."""
    m, k = rows.shape[1], places.shape[1]
    group = max(1, m // (4 * k))
    maxima = np.empty(-(-m // group), np.uint32)
    found, magnitudes = np.empty(m + 1, np.int64), np.empty(m, np.uint32)
    for number in range(len(rows)):
        row = rows[number]
        for g in range(maxima.size):
            most, part = np.uint32(0), row[g * group : (g + 1) * group]
            for i in range(part.size):
                magnitude = np.uint32(part[i] & MAGNITUDE)
                most = magnitude if magnitude > most else most
            maxima[g] = most
        bound = np.partition(maxima, maxima.size - k)[maxima.size - k]
        n = np.uint64(0)
        for i in range(m):
            found[n] = i
            n += np.uint64((row[i] & MAGNITUDE) >= bound)
        many = np.int64(n)
        for j in range(many):
            magnitudes[j] = row[found[j]] & MAGNITUDE
        kth = np.partition(magnitudes[:many], many - k)[many - k]
        ties, taken = k, 0
        for j in range(many):
            ties -= magnitudes[j] > kth
        for j in range(many):
            tie = magnitudes[j] == kth
            if magnitudes[j] > kth or (tie and ties > 0):
                ties -= tie
                places[number, taken] = found[j]
                taken += 1
