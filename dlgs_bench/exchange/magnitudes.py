"""Search for magnitudes that reach a threshold, and for the largest of a row, without sorting all entries.

Float32 tensors on CPUs are searched by compiled passes at memory speed. Other tensors are searched by torch operations,
which choose the same entries.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from dlgs_bench.exchange.quantisation import Pieces, ends, fits

MAGNITUDE = np.uint32(0x7FFFFFFF)  # all bits of a float32 except its sign: they have the order of its magnitude
CACHED = 4096  # entries that stay in the first cache
TINY = np.float32(1e-45)  # the smallest magnitude above zero


def count_at_least(vector: Tensor, h: float) -> tuple[int, float]:
    """The number of magnitudes of ``vector``, shape (n,), that are at least ``h`` and not zero, and their sum."""
    if not fits(vector):
        return count_at_least_by_torch(vector, h)
    return _count_at_least(vector.numpy(), max(np.float32(h), TINY))


def count_at_least_by_torch(vector: Tensor, h: float) -> tuple[int, float]:
    magnitudes = vector.abs()
    magnitudes = magnitudes[(magnitudes >= h) & (magnitudes > 0)]
    return len(magnitudes), magnitudes.sum(dtype=torch.float64).item()


def indices_at_least(vector: Tensor, thresholds: Tensor, pieces: Pieces) -> Tensor:
    """The sorted indices, int64, of the entries whose magnitude is not zero and at least the threshold of their piece.

    ``vector``: shape (n,). ``thresholds``: shape (pieces,). ``pieces``: as in ``quantisation``. NaN is chosen, too.
    """
    where = ends(len(vector), pieces)
    if not fits(vector):
        return indices_at_least_by_torch(vector, thresholds, where)
    indices = np.empty(len(vector) + 1, np.int64)  # the kernel backs only the pages that are written to
    n = _indices_at_least(vector.numpy(), thresholds.numpy(), where, indices)
    return torch.from_numpy(indices[:n])


def indices_at_least_by_torch(vector: Tensor, thresholds: Tensor, where: np.ndarray) -> Tensor:
    lengths = torch.from_numpy(np.diff(where, prepend=0)).to(vector.device)
    h = thresholds.repeat_interleave(lengths)
    # "not < h" instead of ">= h" chooses NaN.
    return (~(vector.abs() < h) & (vector != 0)).nonzero().view(-1)


def largest_in_rows(rows: Tensor, k: int) -> Tensor:
    """The sorted column indices, int64 (n, min(k, m)), of the k largest magnitudes in each row of ``rows``, (n, m).

    NaN ranks above all numbers. Of equal magnitudes any may be chosen; on CPUs, the first.
    """
    k = min(k, rows.shape[1])
    if not fits(rows):
        return largest_in_rows_by_torch(rows, k)
    indices = np.empty((len(rows), k), np.int64)
    _largest_in_rows(rows.contiguous().numpy().view(np.uint32), indices)
    return torch.from_numpy(indices)


def largest_in_rows_by_torch(rows: Tensor, k: int) -> Tensor:
    return rows.abs().topk(k).indices.sort().values


# "reassoc" allows another order of additions, so the compiler can vectorise the sum.
@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _count_at_least(vector: np.ndarray, h: np.float32) -> tuple[int, float]:
    many, total = np.float64(0), 0.0
    for start in range(0, vector.size, CACHED):
        part = vector[start : start + CACHED]
        n, some = np.float32(0), 0.0  # the sum has 64 bits, as in torch, so large entries do not overflow
        for i in range(part.size):
            magnitude = abs(part[i])
            n += np.float32(1) if magnitude >= h else np.float32(0)
            some += np.float64(magnitude) if magnitude >= h else 0.0
        many += n
        total += some
    return int(many), total


@njit(cache=True, nogil=True)
def _indices_at_least(vector: np.ndarray, thresholds: np.ndarray, ends: np.ndarray, indices: np.ndarray) -> np.uint64:
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
def _kth_largest(magnitudes: np.ndarray, k: int) -> int:
    """The largest number that at least k magnitudes reach, found bit by bit.

    Numba takes 10 seconds to compile ``numpy.partition``, which is not faster on random rows of up to 4096 entries.
    """
    found = 0
    for bit in range(30, -1, -1):
        number, many = found | 1 << bit, 0
        for i in range(magnitudes.size):
            many += magnitudes[i] >= np.uint32(number)
        found = number if many >= k else found
    return found


@njit(cache=True, nogil=True)
def _largest_in_rows(rows: np.ndarray, indices: np.ndarray) -> None:
    """Write the sorted indices of the k largest magnitudes of each row to ``indices``.

    A row is split into groups. The k-th largest of the groups' maxima is a lower bound of the k-th largest entry, so
    only entries that reach this bound are ranked.
    """
    m, k = rows.shape[1], indices.shape[1]
    group = max(1, m // (4 * k))
    maxima = np.empty(-(-m // group), np.uint32)
    candidates, magnitudes = np.empty(m + 1, np.int64), np.empty(m, np.uint32)
    for number in range(len(rows)):
        row = rows[number]
        for g in range(maxima.size):
            most, part = np.uint32(0), row[g * group : (g + 1) * group]
            for i in range(part.size):
                magnitude = np.uint32(part[i] & MAGNITUDE)
                most = magnitude if magnitude > most else most
            maxima[g] = most
        bound = _kth_largest(maxima, k)
        n = np.uint64(0)
        for i in range(m):
            candidates[n] = i
            n += np.uint64((row[i] & MAGNITUDE) >= bound)
        many = np.int64(n)
        for j in range(many):
            magnitudes[j] = row[candidates[j]] & MAGNITUDE
        kth = _kth_largest(magnitudes[:many], k)
        ties, taken = k, 0
        for j in range(many):
            ties -= magnitudes[j] > kth
        for j in range(many):
            tie = magnitudes[j] == kth
            if magnitudes[j] > kth or (tie and ties > 0):
                ties -= tie
                indices[number, taken] = candidates[j]
                taken += 1
