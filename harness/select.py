"""Selection: which entries of a vector are sent. The plain torch version."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TopK:
    """Rule: the k entries of largest magnitude."""

    k: int


@dataclass(frozen=True)
class Threshold:
    """Rule: the entries whose magnitude is at least h, and not zero (paper, Algorithm 1)."""

    h: float


def indices(acc: Tensor, rule: "Tensor | TopK | Threshold") -> Tensor:
    """Apply a rule to ``acc``, shape (d,); return int64 indices. Indices pass through."""
    match rule:
        case TopK(k):
            return torch.topk(acc.abs(), k, sorted=False).indices
        case Threshold(h):
            magnitude = acc.abs()
            # Where h is 0 only the non-zero entries count; "> 0" is the same comparison made once.
            mask = magnitude >= h if h > 0 else magnitude > 0
            return mask.nonzero().view(-1)
        case _:
            return rule


def kth_magnitude(acc: Tensor, k: int) -> float:
    """The k-th largest magnitude of ``acc``, shape (d,), 1 <= k <= d (paper, Algorithm 1)."""
    return torch.topk(acc.abs(), k, sorted=False).values.min().item()
