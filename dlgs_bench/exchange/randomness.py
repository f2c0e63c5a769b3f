"""Random numbers for methods. They leave torch's global generator alone, which drop-out and augmentation use."""

import numpy as np
import torch
from torch import Tensor

from dlgs_bench.exchange.quantisation import compiled_backend


def generator(device: torch.device, *seed: int) -> torch.Generator:
    """A generator that depends on ``seed`` only, which is one or more numbers >= 0.

    It is the same on all workers, unless the seed contains the rank. Two seeds of the same length that differ in any
    number give unrelated streams (numpy's SeedSequence mixes them).
    """
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))


def uniform(device: torch.device, size: int, *seed: int) -> Tensor:
    """Uniform random numbers in [0, 1), float32, shape (size,), that depend on ``seed`` only, as in ``generator``.

    On CPUs each number is a hash of its index and the seed, so a compiled pass can draw any of them.
    """
    if device.type == "cpu":
        return compiled_backend.uniform(size, seed)
    return torch.rand(size, generator=generator(device, *seed), dtype=torch.float32, device=device)
