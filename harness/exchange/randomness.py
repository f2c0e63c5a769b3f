"""Random numbers that are a method's own: torch's global generator serves drop-out and augmentation."""

import numpy as np
import torch


def generator(device: torch.device, *seed: int) -> torch.Generator:
    """A generator that follows from ``seed``, numbers >= 0, alone: the same on all workers, or with the rank in it not.

    Seeds of as many numbers that differ in any give unrelated streams (numpy's SeedSequence mixes them).
    """
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
