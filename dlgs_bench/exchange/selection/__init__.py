"""Selection: choose the entries of a vector that are sent, and remove them from it.

Two implementations have the functions ``take``, ``take_at_most``, ``kth_magnitude`` and ``workspace``. ``torch`` is the
reference, and the paper used it. ``compiled`` accumulates and selects in one pass over memory (on GPUs,
``triton_backend``). Both choose the same entries, except among entries of equal magnitude. Both raise
FloatingPointError for NaN before anything is sent, except ``take_at_most``: no host waits for it, so it returns NaN as
a count (``MANY``).
"""

import importlib
from dataclasses import dataclass
from types import ModuleType

from torch import Tensor

NAN = "the gradient holds NaN: training has diverged; a lower learning rate or a warm-up may help"

MANY = 2**31 - 1  # the count of chosen entries if one is NaN; larger than every bucket

IMPLEMENTATIONS = ("torch", "compiled")


@dataclass(frozen=True)
class TopK:
    """Rule: the k entries of largest magnitude, 1 <= k <= d. Of equal magnitudes, any may be chosen."""

    k: int


@dataclass(frozen=True)
class Threshold:
    """Rule: the entries whose magnitude is not zero and at least h >= 0 (paper, Algorithm 1)."""

    h: float


Rule = Tensor | TopK | Threshold


def implementation(name: str) -> ModuleType:
    """The module that implements selection under this name."""
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"selection: {name!r} is not a selection; use one of: {', '.join(IMPLEMENTATIONS)}")
    return importlib.import_module(f"dlgs_bench.exchange.selection.{name}_backend")
