"""Orthonormal transforms as matrices, whose transpose is their inverse."""

import math
from functools import cache

import torch
from torch import Tensor


@cache
def cosines(size: int, device: torch.device) -> Tensor:
    """The matrix of the cosine transform DCT-II, float32 (size, size), with one row per wave."""
    waves = torch.arange(size, dtype=torch.float32)
    turns = waves[:, None] * (waves + 0.5) / size
    matrix = torch.cos(math.pi * turns) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(device)


@cache
def hadamard(size: int, device: torch.device) -> Tensor:
    """The matrix of the Walsh-Hadamard transform, float32 (size, size); ``size`` is a power of two.

    The matrix is symmetric, so it is its own inverse.
    """
    matrix = torch.ones(1, 1, dtype=torch.float32)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)]) * math.sqrt(0.5)
    return matrix.to(device)


def rotate(vector: Tensor) -> Tensor:
    """Rotate ``vector``, float32 (n,), in place by Walsh-Hadamard transforms, and return it; a second call undoes it.

    The vector is split into pieces of 4096 entries, and the remainder into one piece for each power of two in it. Each
    piece is rotated.
    """
    start = 0
    while start < len(vector):
        rest = len(vector) - start
        size = min(4096, 1 << (rest.bit_length() - 1))
        pieces = rest // size
        rows = 1 << (size.bit_length() - 1) // 2
        part = vector[start : start + pieces * size].view(pieces, rows, size // rows)
        part.copy_(hadamard(rows, vector.device) @ part @ hadamard(size // rows, vector.device))
        start += pieces * size
    return vector
