"""Quantisation: entries as codes of a few bits, in a unit that each piece of a vector has for itself.

Pieces are blocks of so many entries, or layers of these sizes. An entry is its level times its piece's unit. Code c of
2, 4 or 8 bits is the level c - L, with L = 2 ** (bits - 1) - 1; in one bit, a sign, it is 2 c - 1. Two implementations
give the same bits: ``compiled_backend``, compiled, at the speed of memory, on CPUs, and ``torch_backend`` elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Pieces = int | Sequence[int]


@dataclass(frozen=True)
class Levels:
    """How a multiple of the unit becomes a code: plus ``half`` unless something random is added, rounded down, not
    below ``lowest``, not above ``highest``. Levels are ``step`` apart, and ``lowest`` is the first."""

    lowest: int
    highest: int
    half: float
    step: int


def levels(bits: int) -> Levels:
    """Those of codes of 1, 2, 4 or 8 bits; a sign is rounded down to -1 or 0, which are the levels -1 and 1."""
    last = 2 ** (bits - 1) - 1
    return Levels(-1, 0, 0.0, 2) if bits == 1 else Levels(-last, last, 0.5, 1)


def norms(vector: Tensor, pieces: Pieces, p: float) -> Tensor:
    """The p-norm of each piece of ``vector``, float32 (n,): p is 1, 2 or infinity. NaN where there is any."""
    return _implementation(vector).norms(vector, ends(len(vector), pieces), p)


def encode(vector: Tensor, units: Tensor, pieces: Pieces, bits: int, seed: tuple[int, ...] = ()) -> Tensor:
    """``vector``, float32 (n,), as a message, uint8: the units, float32 (pieces,), then the codes as ``pack`` has them.

    The level is the nearest one. With a ``seed``, as ``uniform`` has it, it is one of the two beside the entry, at
    random, whose mean is the entry. What is beyond the last level becomes that one. NaN has any code.
    """
    return _implementation(vector).encode(vector, units, ends(len(vector), pieces), bits, seed)


def decode(messages: Sequence[Tensor], pieces: Pieces, bits: int, out: Tensor) -> Tensor:
    """Write the sum of what messages of ``encode`` stand for, added in their order, to ``out``, float32 (n,)."""
    return _implementation(out).decode(*_parts(messages, pieces, len(out)), bits, out)


def subtract(message: Tensor, pieces: Pieces, bits: int, out: Tensor) -> Tensor:
    """Subtract what a message of ``encode`` stands for from ``out``, float32 (n,), in place."""
    return _implementation(out).subtract(*_parts([message], pieces, len(out)), bits, out)


def ends(size: int, pieces: Pieces) -> np.ndarray:
    """Where each piece of a vector of ``size`` entries ends, int64."""
    if isinstance(pieces, int):
        return np.minimum(np.arange(1, -(-size // pieces) + 1) * pieces, size)
    return np.cumsum(pieces)


def _parts(messages: Sequence[Tensor], pieces: Pieces, size: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Of messages their units, shape (messages, pieces), and packed codes, (messages, bytes), and where pieces end."""
    where = ends(size, pieces)
    floats = 4 * len(where)
    units = torch.stack([message[:floats].clone().view(torch.float32) for message in messages])  # cloned, it is aligned
    return units, torch.stack([message[floats:] for message in messages]), where


def fits(vector: Tensor) -> bool:
    """Whether compiled passes are for such a vector."""
    return vector.device.type == "cpu" and vector.dtype == torch.float32


def _implementation(vector: Tensor):
    from dlgs_bench.exchange.quantisation import compiled_backend, torch_backend  # they import this package

    return compiled_backend if fits(vector) else torch_backend
