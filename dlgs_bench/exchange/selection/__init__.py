"""Selection: which entries of a vector are sent, and taking them out of it.

Two implementations of one interface, ``take``, ``take_at_most``, ``kth_magnitude`` and ``workspace``: ``torch`` is the
reference and what the paper used; ``compiled`` accumulates and takes in one pass over memory (on GPUs,
``triton_backend``).
They choose the same entries, and refuse NaN with a FloatingPointError before anything is sent; ``take_at_most``, for
which no host waits, counts it instead.
"""

import importlib
from dataclasses import dataclass

from torch import Tensor

NAN = "the gradient holds NaN: training has diverged; a lower learning rate or a warm-up may help"

MANY = 2**31 - 1  # chosen, where NaN is among them: more than a bucket holds

IMPLEMENTATIONS = ("torch", "compiled")


@dataclass(frozen=True)
class TopK:
    """Rule: the k entries of largest magnitude, 1 <= k <= d; among equals any may be chosen."""

    k: int


@dataclass(frozen=True)
class Threshold:
    """Rule: the entries whose magnitude is at least h >= 0, and not zero (paper, Algorithm 1)."""

    h: float


Rule = Tensor | TopK | Threshold


def implementation(name: str):
    """The module that implements the interface."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"selection {name!r} is not known; one of: {', '.join(IMPLEMENTATIONS)}")
    return importlib.import_module(f"dlgs_bench.exchange.selection.{name}_backend")
