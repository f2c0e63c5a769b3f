"""Selection on a GPU: a radix search for the k-th magnitude, a count, and a compaction in order.

As on the CPU, the bits of a float without its sign have the order of its magnitude. The compaction has two passes, one
that counts per block and one that moves entries, so the same input gives the same output. The host waits once, for the
number of entries. In ``take_at_most`` it does not wait.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dlgs_bench.exchange.selection import MANY, NAN, Rule, Threshold, TopK, torch_backend

BLOCK = 1024
TURNS = 16  # blocks that one program counts before it adds to the shared histogram
# By dtype: an integer dtype of the same size, the bits of infinity, and the digits of a magnitude, the highest first,
# as (shift, width).
LAYOUTS = {
    torch.float32: (torch.int32, 0x7F800000, ((20, 11), (10, 10), (0, 10))),
    torch.float16: (torch.int16, 0x7C00, ((7, 8), (0, 7))),
    torch.bfloat16: (torch.int16, 0x7F80, ((7, 8), (0, 7))),
}


@triton.jit
def _sum(corrected, gradient, index, mask, ADD: tl.constexpr):
    """The entries of ``corrected`` at ``index``; with ADD, after the gradient has been added to them."""
    entries = tl.load(corrected + index, mask, 0.0)
    if ADD:
        more = tl.load(gradient + index, mask, 0.0).to(tl.float32)
        entries = (entries.to(tl.float32) + more).to(entries.dtype)
        tl.store(corrected + index, entries, mask)
    return entries


@triton.jit
def _magnitude(entries, BITS: tl.constexpr):
    """The bits of the magnitudes of entries, as int32."""
    if BITS == 32:
        magnitude = entries.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        magnitude = entries.to(tl.int16, bitcast=True).to(tl.int32) & 0x7FFF
    return magnitude


@triton.jit
def _histogram(
    corrected, gradient, prefix, counts, size,
    SHIFT: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr,
    ADD: tl.constexpr, TURNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the magnitudes by their digit at SHIFT; only those whose higher digits are equal to ``prefix`` count."""
    wanted = tl.load(prefix)
    histogram = tl.zeros((1 << WIDTH,), tl.int32)
    for turn in range(TURNS):
        index = (tl.program_id(0) * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)
        mask = index < size
        magnitude = _magnitude(_sum(corrected, gradient, index, mask, ADD), BITS)
        digit = (magnitude >> SHIFT) & ((1 << WIDTH) - 1)
        histogram += tl.histogram(digit, 1 << WIDTH, mask & ((magnitude >> (SHIFT + WIDTH)) == wanted))
    tl.atomic_add(counts + tl.arange(0, 1 << WIDTH), histogram, sem="relaxed")


@triton.jit
def _count(
    corrected, gradient, least, counts, size, INFINITY: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count, per block, the magnitudes above ``least``, those equal to it, and NaNs."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    magnitude = _magnitude(_sum(corrected, gradient, index, mask, ADD), BITS)
    h = tl.load(least)
    row = counts + tl.program_id(0) * 3
    tl.store(row, tl.sum((mask & (magnitude > h)).to(tl.int32)))
    tl.store(row + 1, tl.sum((mask & (magnitude == h)).to(tl.int32)))
    tl.store(row + 2, tl.sum((mask & (magnitude > INFINITY)).to(tl.int32)))


@triton.jit(do_not_specialize=["most"])  # "most" changes from step to step; this avoids a compilation for each value
def _move(
    corrected, least, ties, first_tie, first, values, indices, size, most, BITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Move the entries above ``least``, and the first ``ties`` entries equal to it, out of ``corrected``, in order.

    At most ``most`` entries are moved. ``first``, ``first_tie``: the number of entries to move, and of ties, before
    each block.
    """
    block = tl.program_id(0)
    index = block * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    entries = tl.load(corrected + index, mask, 0.0)
    magnitude, h = _magnitude(entries, BITS), tl.load(least)
    tie = (mask & (magnitude == h)).to(tl.int32)
    rank = tl.load(first_tie + block) + tl.cumsum(tie) - tie
    taken = mask & ((magnitude > h) | ((tie > 0) & (rank < tl.load(ties))))
    one = taken.to(tl.int32)
    to = tl.load(first + block) + tl.cumsum(one) - one
    moved = taken & (to < most)
    tl.store(values + to, entries, moved)
    tl.store(indices + to, index, moved)
    tl.store(corrected + index, tl.zeros_like(entries), moved)


def fits(corrected: Tensor) -> bool:
    """Whether ``take`` supports a tensor."""
    return corrected.dtype in LAYOUTS and corrected.numel() < 2**31


def _kth_bits(corrected: Tensor, k: int, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """The bits of the k-th largest magnitude of ``corrected`` (+ gradient), and how many of the k largest equal it.

    Both have shape (1,).
    """
    _, _, digits = LAYOUTS[corrected.dtype]
    prefix, left = corrected.new_zeros(1, dtype=torch.int32), corrected.new_full((1,), k, dtype=torch.int64)
    for shift, width in digits:
        counts = corrected.new_zeros(1 << width, dtype=torch.int32)
        add = gradient is not None and shift == digits[0][0]
        _histogram[(triton.cdiv(corrected.numel(), BLOCK * TURNS),)](
            corrected, gradient if add else corrected, prefix, counts, corrected.numel(),
            SHIFT=shift, WIDTH=width, BITS=8 * corrected.itemsize, ADD=add, TURNS=TURNS, BLOCK=BLOCK,
        )  # fmt: skip
        at_least = counts.flip(0).cumsum(0).flip(0)  # by digit: the magnitudes that have this digit or a larger one
        digit = (at_least >= left).sum(0, keepdim=True) - 1
        left = left - (at_least[digit] - counts[digit])
        prefix = (prefix << width | digit).int()
    return prefix, left


def take(
    corrected: Tensor, rule: Rule, gradient: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Take entries, as ``torch_backend.take`` does; indices are int32 and sorted. Of ties, the lowest index wins."""
    if isinstance(rule, Tensor):
        return torch_backend.take(corrected, rule, gradient)
    least, ties, counts = _counted(corrected, rule, gradient)
    n, nans = torch.cat(_totals(counts, ties)).tolist()
    if nans:
        raise FloatingPointError(NAN)
    return _moved(corrected, least, ties, counts, n)


def take_at_most(
    corrected: Tensor, rule: TopK | Threshold, most: int, gradient: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Take entries, as ``torch_backend.take_at_most`` does; the indices are int32. Of ties, the lowest index wins.

    The indices of the chosen entries are sorted.
    """
    least, ties, counts = _counted(corrected, rule, gradient)
    n, nans = _totals(counts, ties)
    return *_moved(corrected, least, ties, counts, most), n.masked_fill_(nans > 0, MANY)


def _counted(corrected: Tensor, rule: TopK | Threshold, gradient: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Add the gradient to ``corrected``, and count the entries that the rule chooses.

    Returns the bits that a magnitude must reach, (1,), the number of chosen entries that may equal them, (1,), and the
    counts of ``_count``, (blocks, 3).
    """
    integer, infinity, _ = LAYOUTS[corrected.dtype]
    size, grid = corrected.numel(), (triton.cdiv(corrected.numel(), BLOCK),)
    if isinstance(rule, Threshold):
        bits = max(1, torch.tensor(rule.h, dtype=corrected.dtype).view(integer).item())  # at least 1: zero is not taken
        least, ties = (
            corrected.new_full((1,), bits, dtype=torch.int32),
            corrected.new_full((1,), size, dtype=torch.int64),
        )
    else:
        (least, ties), gradient = _kth_bits(corrected, rule.k, gradient), None
    counts = corrected.new_empty(grid[0], 3, dtype=torch.int32)
    _count[grid](
        corrected, corrected if gradient is None else gradient, least, counts, size,
        INFINITY=infinity, BITS=8 * corrected.itemsize, ADD=gradient is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return least, ties, counts


def _totals(counts: Tensor, ties: Tensor) -> tuple[Tensor, Tensor]:
    """The number of entries to move, and the number of NaNs, int64, (1,) each."""
    above, tied, nan = counts.sum(0, keepdim=True).unbind(1)
    return above + tied.minimum(ties), nan


def _moved(corrected: Tensor, least: Tensor, ties: Tensor, counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Move the first ``most`` entries out of ``corrected``; return values and int32 indices, padded with zeros."""
    above, tied, _ = counts.long().cumsum(0).unbind(1)
    first_tie = tied - counts[:, 1]
    first = above - counts[:, 0] + first_tie.minimum(ties)
    values, indices = corrected.new_zeros(most), corrected.new_zeros(most, dtype=torch.int32)
    _move[(len(counts),)](
        corrected,
        least,
        ties,
        first_tie,
        first,
        values,
        indices,
        corrected.numel(),
        most,
        BITS=8 * corrected.itemsize,
        BLOCK=BLOCK,
    )
    return values, indices


def kth_magnitude(corrected: Tensor, k: int) -> float:
    """The k-th largest magnitude, as in ``torch_backend.kth_magnitude``."""
    torch_backend.refuse_nan(corrected)
    integer, _, _ = LAYOUTS[corrected.dtype]
    return _kth_bits(corrected, k, None)[0].to(integer).view(corrected.dtype).item()
