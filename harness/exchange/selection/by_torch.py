"""Selection in plain torch operations, on any device: the reference."""

import torch
from torch import Tensor

from harness.exchange.selection import MANY, NAN, Rule, Threshold, TopK


def room(acc: Tensor) -> Tensor | None:
    """Memory for what ``take`` returns, to be handed to it in every step; None if it has no use for any."""
    return None


def take(acc: Tensor, rule: Rule, gradient: Tensor | None = None, room: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Take the entries that ``rule`` chooses out of ``acc``, shape (d,): they become 0 there.

    Returns their values, shape (n,), and their int64 indices, shape (n,), which lie in ``room`` if one is
    given. ``gradient``, shape (d,), if given, is added to ``acc`` before.
    """
    if gradient is not None:
        acc.add_(gradient)
    chosen = _indices(acc, rule)
    values = acc[chosen]
    if isinstance(rule, Tensor):
        refuse_nan(values)
    acc.index_fill_(0, chosen, 0)
    return values, chosen


def take_at_most(
    acc: Tensor, rule: TopK | Threshold, most: int, gradient: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """As ``take``, of the first ``most`` entries alone; the others stay in ``acc``. The host never waits for a device.

    Returns values and indices, shape (most,), and how many entries the rule chose, int64, shape (1,), or ``MANY`` if
    there is NaN. Behind the last entry are zeros, at any index. ``most`` is a ``TopK``'s k.
    """
    if gradient is not None:
        acc.add_(gradient)
    magnitude = acc.abs()
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
    values = acc[indices].masked_fill_(filler, 0)
    # Where nothing was chosen, what lies at index 0 stays there.
    acc.index_copy_(0, indices, torch.where(chosen > 0, 0, acc[:1]).expand(most))
    return values, indices, chosen.masked_fill_(magnitude.amax(0, keepdim=True).isnan(), MANY)


def _indices(acc: Tensor, rule: Rule) -> Tensor:
    match rule:
        case TopK(k):
            top = torch.topk(acc.abs(), k, sorted=False)
            refuse_nan(top.values)  # NaN ranks highest: if there is one, it is among them
            return top.indices
        case Threshold(h):
            magnitude = acc.abs()
            refuse_nan(magnitude.max())  # a comparison with NaN is false, so NaN would go unnoticed
            # Where h is 0 only the non-zero entries count; "> 0" is the same comparison made once.
            mask = magnitude >= h if h > 0 else magnitude > 0
            return mask.nonzero().view(-1)
        case _:
            return rule


def kth_magnitude(acc: Tensor, k: int) -> float:
    """The k-th largest magnitude of ``acc``, shape (d,), 1 <= k <= d (paper, Algorithm 1)."""
    top = torch.topk(acc.abs(), k, sorted=False).values
    refuse_nan(top)
    return top.min().item()


def refuse_nan(magnitudes: Tensor) -> None:
    """FloatingPointError if there is NaN."""
    if magnitudes.isnan().any():
        raise FloatingPointError(NAN)
