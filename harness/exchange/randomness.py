"""Random numbers that are a method's own: torch's global generator serves drop-out and augmentation."""

import numpy as np
import torch
from numba import njit
from torch import Tensor


def generator(device: torch.device, *seed: int) -> torch.Generator:
    """A generator that follows from ``seed``, numbers >= 0, alone: the same on all workers, or with the rank in it not.

    Seeds of as many numbers that differ in any give unrelated streams (numpy's SeedSequence mixes them).
    """
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))


def uniform(device: torch.device, size: int, *seed: int) -> Tensor:
    """Uniform numbers in [0, 1), float32, shape (size,), that follow from ``seed`` as those of a ``generator`` do.

    On CPUs each is a hash of its place and the seed, so that a compiled pass may ``draw`` any of them.
    """
    if device.type != "cpu":
        return torch.rand(size, generator=generator(device, *seed), device=device)
    numbers = np.empty(size, np.float32)
    _draw(numbers, *keys(*seed))
    return torch.from_numpy(numbers)


def keys(*seed: int) -> tuple[np.uint32, np.uint32]:
    """What ``draw`` needs of a seed."""
    return tuple(np.random.SeedSequence(seed).generate_state(2, np.uint32))


@njit(cache=True, nogil=True)
def draw(place, first, second):
    """The uniform number at a place below 2 ** 32, of two keys."""
    mixed = _mix(np.uint32(_mix(np.uint32(np.uint32(place) ^ first)) ^ second))
    return np.float32(np.int32(mixed >> np.uint32(8))) * np.float32(2**-24)


@njit(cache=True, nogil=True)
def _draw(numbers, first, second):
    for i in range(numbers.size):
        numbers[i] = draw(i, first, second)


@njit(cache=True, nogil=True)
def _mix(x):
    """Every bit of 32 depends on all of them (the last step of MurmurHash3, by Appleby)."""
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))
