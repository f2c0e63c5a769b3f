"""Random numbers that are a method's own: torch's global generator serves drop-out and augmentation."""

import numpy as np
import torch
from torch import Tensor

from dlgs_bench.exchange.quantisation import compiled_backend


def generator(device: torch.device, *seed: int) -> torch.Generator:
    """A generator that follows from ``seed``, numbers >= 0, alone: the same on all workers, or with the rank in it not.

    Seeds of as many numbers that differ in any give unrelated streams (numpy's SeedSequence mixes them).
    """
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))


def uniform(device: torch.device, size: int, *seed: int) -> Tensor:
    """Uniform numbers in [0, 1), float32, shape (size,), that follow from ``seed`` as those of a ``generator`` do.

    On CPUs each is a hash of its place and the seed, so that a compiled pass may draw any of them.
    """
    if device.type == "cpu":
        return compiled_backend.uniform(size, seed)
    return torch.rand(size, generator=generator(device, *seed), dtype=torch.float32, device=device)
