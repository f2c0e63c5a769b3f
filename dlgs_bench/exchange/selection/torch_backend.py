"""Selection in plain torch operations, on any device: the reference."""

import torch
from torch import Tensor

from dlgs_bench.exchange.selection import MANY, NAN, Rule, Threshold, TopK


def workspace(corrected: Tensor) -> Tensor | None:
    """Memory for what ``take`` returns, to be handed to it in every step; None if it has no use for any."""
    return None


def take(
    corrected: Tensor, rule: Rule, gradient: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Take the entries that ``rule`` chooses out of ``corrected``, shape (d,): they become 0 there.

    Returns their values, shape (n,), and their int64 indices, shape (n,), which lie in ``workspace`` if one is
    given. ``gradient``, shape (d,), if given, is added to ``corrected`` before.
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
    """As ``take``, of the first ``most`` entries alone; the others stay in ``corrected``. The host never waits for a
    device.

    Returns values and indices, shape (most,), and how many entries the rule chose, int64, shape (1,), or ``MANY`` if
    there is NaN. Behind the last entry are zeros, at any index. ``most`` is a ``TopK``'s k.
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
    # Where nothing was chosen, what lies at index 0 stays there.
    corrected.index_copy_(0, indices, torch.where(chosen > 0, 0, corrected[:1]).expand(most))
    return values, indices, chosen.masked_fill_(magnitude.amax(0, keepdim=True).isnan(), MANY)


def _indices(corrected: Tensor, rule: Rule) -> Tensor:
    match rule:
        case TopK(k):
            top = torch.topk(corrected.abs(), k, sorted=False)
            refuse_nan(top.values)  # NaN ranks highest: if there is one, it is among them
            return top.indices
        case Threshold(h):
            magnitude = corrected.abs()
            refuse_nan(magnitude.max())  # a comparison with NaN is false, so NaN would go unnoticed
            # Where h is 0 only the non-zero entries count; "> 0" is the same comparison made once.
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
    """FloatingPointError if there is NaN."""
    if magnitudes.isnan().any():
        raise FloatingPointError(NAN)
