"""Selection on a GPU: a radix search for the k-th magnitude, a count, and a compaction in order.

As on the CPU, a float's bits without the sign order as its magnitude does. Whatever needs a place for its
results in order is done in two passes, counts per block and then the entries themselves, so that the same
input gives the same output. The host waits once, for how many there are, or never, where it has said how many it
will have at most.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dlgs_bench.exchange.selection import MANY, NAN, Rule, Threshold, TopK, torch_backend

BLOCK = 1024
TURNS = 16  # blocks that one program counts before it adds to the common histogram
# Per float: the integer it is read as, infinity's bits, the digits of its magnitude from the top as (shift, width).
LAYOUTS = {
    torch.float32: (torch.int32, 0x7F800000, ((20, 11), (10, 10), (0, 10))),
    torch.float16: (torch.int16, 0x7C00, ((7, 8), (0, 7))),
    torch.bfloat16: (torch.int16, 0x7F80, ((7, 8), (0, 7))),
}


@triton.jit
def _sum(corrected, gradient, place, here, ADD: tl.constexpr):
    """The entries of ``corrected`` at ``place``; with ADD, after gradient was added to them."""
    found = tl.load(corrected + place, here, 0.0)
    if ADD:
        more = tl.load(gradient + place, here, 0.0).to(tl.float32)
        found = (found.to(tl.float32) + more).to(found.dtype)
        tl.store(corrected + place, found, here)
    return found


@triton.jit
def _magnitude(found, BITS: tl.constexpr):
    if BITS == 32:
        magnitude = found.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        magnitude = found.to(tl.int16, bitcast=True).to(tl.int32) & 0x7FFF
    return magnitude


@triton.jit
def _histogram(
    corrected, gradient, prefix, counts, size,
    SHIFT: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr,
    ADD: tl.constexpr, TURNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count by their digit at SHIFT the magnitudes whose digits above it are ``prefix``."""
    wanted = tl.load(prefix)
    found = tl.zeros((1 << WIDTH,), tl.int32)
    for turn in range(TURNS):
        place = (tl.program_id(0) * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)
        here = place < size
        magnitude = _magnitude(_sum(corrected, gradient, place, here, ADD), BITS)
        digit = (magnitude >> SHIFT) & ((1 << WIDTH) - 1)
        found += tl.histogram(digit, 1 << WIDTH, here & ((magnitude >> (SHIFT + WIDTH)) == wanted))
    tl.atomic_add(counts + tl.arange(0, 1 << WIDTH), found, sem="relaxed")


@triton.jit
def _count(
    corrected, gradient, least, counts, size, INFINITY: tl.constexpr, BITS: tl.constexpr, ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Per block: how many magnitudes are above ``least``, how many equal it, how many are NaN."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    magnitude = _magnitude(_sum(corrected, gradient, place, here, ADD), BITS)
    h = tl.load(least)
    row = counts + tl.program_id(0) * 3
    tl.store(row, tl.sum((here & (magnitude > h)).to(tl.int32)))
    tl.store(row + 1, tl.sum((here & (magnitude == h)).to(tl.int32)))
    tl.store(row + 2, tl.sum((here & (magnitude > INFINITY)).to(tl.int32)))


@triton.jit(do_not_specialize=["most"])  # it changes from step to step, and must not be compiled for each anew
def _move(
    corrected, least, ties, first_tie, first, values, indices, size, most, BITS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Move out of ``corrected`` what is above ``least`` and the first ``ties`` of what equals it, in order, ``most``
    in all."""
    block = tl.program_id(0)
    place = block * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    found = tl.load(corrected + place, here, 0.0)
    magnitude, h = _magnitude(found, BITS), tl.load(least)
    tie = (here & (magnitude == h)).to(tl.int32)
    rank = tl.load(first_tie + block) + tl.cumsum(tie) - tie
    taken = here & ((magnitude > h) | ((tie > 0) & (rank < tl.load(ties))))
    one = taken.to(tl.int32)
    to = tl.load(first + block) + tl.cumsum(one) - one
    moved = taken & (to < most)
    tl.store(values + to, found, moved)
    tl.store(indices + to, place, moved)
    tl.store(corrected + place, tl.zeros_like(found), moved)


def fits(corrected: Tensor) -> bool:
    """Whether ``take`` is for such a tensor."""
    return corrected.dtype in LAYOUTS and corrected.numel() < 2**31


def _kth_bits(corrected: Tensor, k: int, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """The bits of the k-th largest magnitude of ``corrected`` (+ gradient), and how many of the first k equal it:
    (1,) each."""
    _, _, digits = LAYOUTS[corrected.dtype]
    prefix, left = corrected.new_zeros(1, dtype=torch.int32), corrected.new_full((1,), k, dtype=torch.int64)
    for shift, width in digits:
        counts = corrected.new_zeros(1 << width, dtype=torch.int32)
        add = gradient is not None and shift == digits[0][0]
        _histogram[(triton.cdiv(corrected.numel(), BLOCK * TURNS),)](
            corrected, gradient if add else corrected, prefix, counts, corrected.numel(),
            SHIFT=shift, WIDTH=width, BITS=8 * corrected.itemsize, ADD=add, TURNS=TURNS, BLOCK=BLOCK,
        )  # fmt: skip
        at_least = counts.flip(0).cumsum(0).flip(0)  # of a digit: how many have it or a larger one
        digit = (at_least >= left).sum(0, keepdim=True) - 1
        left = left - (at_least[digit] - counts[digit])
        prefix = (prefix << width | digit).int()
    return prefix, left


def take(
    corrected: Tensor, rule: Rule, gradient: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As ``torch_backend.take``; int32 indices, rising. Ties go to the lowest index."""
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
    """As ``torch_backend.take_at_most``; int32 indices, rising up to the last entry. Ties go to the lowest index."""
    least, ties, counts = _counted(corrected, rule, gradient)
    n, nans = _totals(counts, ties)
    return *_moved(corrected, least, ties, counts, most), n.masked_fill_(nans > 0, MANY)


def _counted(corrected: Tensor, rule: TopK | Threshold, gradient: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The bits that magnitudes must reach, how many may equal them, (1,) each, and what ``_count`` finds, (blocks, 3);
    the gradient is added to ``corrected``."""
    integer, infinity, _ = LAYOUTS[corrected.dtype]
    size, grid = corrected.numel(), (triton.cdiv(corrected.numel(), BLOCK),)
    if isinstance(rule, Threshold):
        bits = max(1, torch.tensor(rule.h, dtype=corrected.dtype).view(integer).item())  # zero is never taken
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
    """How many entries are to be moved, and how many are NaN, int64, (1,) each."""
    above, tied, nan = counts.sum(0, keepdim=True).unbind(1)
    return above + tied.minimum(ties), nan


def _moved(corrected: Tensor, least: Tensor, ties: Tensor, counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The first ``most`` entries, moved out of ``corrected``: values, and int32 indices; zeros behind the last."""
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
    """As ``torch_backend.kth_magnitude``."""
    torch_backend.refuse_nan(corrected)
    integer, _, _ = LAYOUTS[corrected.dtype]
    return _kth_bits(corrected, k, None)[0].to(integer).view(corrected.dtype).item()
