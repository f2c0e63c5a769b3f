"""Selection by torch operations, on any device; the reference implementation."""

import torch
from torch import Tensor

from dlgs_bench.exchange.selection import MANY, NAN, Rule, Threshold, TopK


def workspace(corrected: Tensor) -> Tensor | None:
    """Memory for the result of ``take``, which the caller passes to it in every step; None if ``take`` needs none."""
    return None


def take(
    corrected: Tensor, rule: Rule, gradient: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Take the entries that ``rule`` chooses out of ``corrected``, shape (d,), and set them to 0 there.

    Returns their values, shape (n,), and their int64 indices, shape (n,). ``workspace`` is not used here. ``gradient``,
    shape (d,), if given, is added to ``corrected`` first.
    """
    if gradient is not None:
        corrected.add_(gradient)
    chosen = _indices(corrected, rule)
    values = corrected[chosen]
    if isinstance(rule, Tensor):
        refuse_nan(values)
    corrected.index_fill_(0, chosen, 0)
    return values, chosen


def take_at_most(
    corrected: Tensor, rule: TopK | Threshold, most: int, gradient: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Take entries, as ``take`` does, but only the first ``most``; the host does not wait for the device.

    Returns values and indices, shape (most,), and the number of entries that the rule chose, int64, shape (1,), or
    ``MANY`` if one of them is NaN. Entries beyond ``most`` stay in ``corrected``. If fewer were chosen, the rest of the
    result is zeros, at any index. With ``TopK``, ``most`` is k.
    """
    if gradient is not None:
        corrected.add_(gradient)
    magnitude = corrected.abs()
    match rule:
        case TopK(k):
            indices = torch.topk(magnitude, k, sorted=False).indices
            chosen = magnitude.new_full((1,), k, dtype=torch.int64)
        case Threshold(h):
            mask = magnitude >= h if h > 0 else magnitude > 0
            indices = torch.nonzero_static(mask, size=most).view(-1)
            chosen = mask.sum(0, keepdim=True)
    filler = indices < 0
    indices = torch.where(filler, indices[0].clamp(min=0), indices)
    values = corrected[indices].masked_fill_(filler, 0)
    # If nothing was chosen, all indices are 0, and the entry at index 0 must not change.
    corrected.index_copy_(0, indices, torch.where(chosen > 0, 0, corrected[:1]).expand(most))
    return values, indices, chosen.masked_fill_(magnitude.amax(0, keepdim=True).isnan(), MANY)


def _indices(corrected: Tensor, rule: Rule) -> Tensor:
    match rule:
        case TopK(k):
            top = torch.topk(corrected.abs(), k, sorted=False)
            refuse_nan(top.values)  # NaN ranks highest, so the k largest contain it
            return top.indices
        case Threshold(h):
            magnitude = corrected.abs()
            refuse_nan(magnitude.max())  # the maximum is NaN if any entry is; a comparison with NaN is false
            # With h = 0, only entries that are not zero are chosen.
            mask = magnitude >= h if h > 0 else magnitude > 0
            return mask.nonzero().view(-1)
        case _:
            return rule


def kth_magnitude(corrected: Tensor, k: int) -> float:
    """The k-th largest magnitude of ``corrected``, shape (d,), 1 <= k <= d (paper, Algorithm 1)."""
    top = torch.topk(corrected.abs(), k, sorted=False).values
    refuse_nan(top)
    return top.min().item()


def refuse_nan(magnitudes: Tensor) -> None:
    """Raise FloatingPointError if a magnitude is NaN."""
    if magnitudes.isnan().any():
        raise FloatingPointError(NAN)
