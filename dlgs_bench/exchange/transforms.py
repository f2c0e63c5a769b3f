"""Orthonormal transforms, as matrices: their transpose is their inverse."""

import math
from functools import cache

import torch
from torch import Tensor


@cache
def cosines(size: int, device: torch.device) -> Tensor:
    """The cosine transform DCT-II, float32 (size, size), a row for each wave."""
    waves = torch.arange(size, dtype=torch.float32)
    turns = waves[:, None] * (waves + 0.5) / size
    matrix = torch.cos(math.pi * turns) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(device)
