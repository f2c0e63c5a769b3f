"""Quantisation: entries as codes of a few bits, times a unit per piece of the vector.

Pieces are blocks of a fixed size (``pieces`` is an int) or layers (``pieces`` is a list of their sizes). An entry is
approximated by its level times the unit of its piece. Code c of 2 to 8 bits has the level c - L, where L is
2 ** (bits - 1) - 1. Code c of one bit, a sign, has the level 2 c - 1. There are two implementations:
``compiled_backend`` for CPUs, at memory speed, and ``torch_backend`` for other devices. On a CPU, both give the same
bits, except for norms, which may differ by rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

Pieces = int | Sequence[int]


@dataclass(frozen=True)
class Levels:
    """How an entry divided by its unit becomes a code.

    ``half``, or a random number in [0, 1), is added to it. The sum is rounded down and clamped to [``lowest``,
    ``highest``]. The first level is ``lowest``, and the distance between levels is ``step``.
    """

    lowest: int
    highest: int
    half: float
    step: int


def levels(bits: int) -> Levels:
    """The levels of codes of 1 to 8 bits. A sign is rounded down to -1 or 0, for the levels -1 and 1."""
    last = 2 ** (bits - 1) - 1
    return Levels(-1, 0, 0.0, 2) if bits == 1 else Levels(-last, last, 0.5, 1)


def norms(vector: Tensor, pieces: Pieces, p: float) -> Tensor:
    """The p-norm of each piece of ``vector``, float32 (n,); p is 1, 2 or infinity. A piece with NaN has norm NaN."""
    return _implementation(vector).norms(vector, ends(len(vector), pieces), p)


def encode(vector: Tensor, units: Tensor, pieces: Pieces, bits: int, seed: tuple[int, ...] = ()) -> Tensor:
    """A message, uint8, of ``vector``, float32 (n,): the units, float32 (pieces,), then the codes, as in ``pack``.

    Entries are rounded to the nearest level. With a ``seed``, as in ``uniform``, they are rounded at random to one of
    the two nearest levels, so that the mean is the entry. Entries beyond the last level are clamped to it. NaN may have
    any code.
    """
    return _implementation(vector).encode(vector, units, ends(len(vector), pieces), bits, seed)


def decode(messages: Sequence[Tensor], pieces: Pieces, bits: int, out: Tensor) -> Tensor:
    """Write the sum of the vectors in messages of ``encode``, added in order, to ``out``, float32 (n,); return it."""
    return _implementation(out).decode(*_parts(messages, pieces, len(out)), bits, out)


def subtract(message: Tensor, pieces: Pieces, bits: int, out: Tensor) -> Tensor:
    """Subtract the vector in a message of ``encode`` from ``out``, float32 (n,), in place, and return it."""
    return _implementation(out).subtract(*_parts([message], pieces, len(out)), bits, out)


def ends(size: int, pieces: Pieces) -> np.ndarray:
    """The end of each piece of a vector of ``size`` entries, int64 (pieces,)."""
    if isinstance(pieces, int):
        return np.minimum(np.arange(1, -(-size // pieces) + 1) * pieces, size)
    return np.cumsum(pieces)


def _parts(messages: Sequence[Tensor], pieces: Pieces, size: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """The units of messages, (messages, pieces), their packed codes, (messages, bytes), and the ends of pieces."""
    where = ends(size, pieces)
    floats = 4 * len(where)
    units = torch.stack([message[:floats].clone().view(torch.float32) for message in messages])  # a clone is aligned
    return units, torch.stack([message[floats:] for message in messages]), where


def fits(vector: Tensor) -> bool:
    """Whether compiled passes support a vector."""
    return vector.device.type == "cpu" and vector.dtype == torch.float32


def _implementation(vector: Tensor) -> ModuleType:
    from dlgs_bench.exchange.quantisation import compiled_backend, torch_backend  # here, since they import this package

    return compiled_backend if fits(vector) else torch_backend
