"""The stationary state of error feedback: the distribution of a residual after long training, in closed form.

We model each entry as a random walk. Its steps have the rms of its layer, and it is reset to 0 when its magnitude
reaches h, because it is then sent. Let h' = h + 0.583 rms, where 0.583 rms is the mean overshoot of discrete steps over
a boundary (Siegmund, Sequential Analysis, 1985, ch. X). An entry then lies in (-h', h') with density (h' - |x|) / h'^2,
and a fraction (rms / h')^2 of the entries is sent in each step. h is chosen so that all layers together send the
requested ratio.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

OVERSHOOT = 0.583  # the mean overshoot of a walk over a boundary, divided by the rms of its steps


def stationary_residual(gradient: Tensor, sizes: Sequence[int], ratio: float) -> Tensor:
    """Draw a residual, shape (d,), from the stationary distribution; ``sizes``: entries per layer of ``gradient``."""
    rms = [float(layer.square().mean().sqrt()) for layer in gradient.split(sizes)]
    h = stationary_threshold(rms, sizes, ratio)
    residual = torch.rand_like(gradient).sub_(torch.rand_like(gradient))
    for layer, step in zip(residual.split(sizes), rms, strict=True):
        layer.mul_(h + OVERSHOOT * step)
    return residual.masked_fill_(residual.abs() >= h, 0.0)


def stationary_threshold(rms: Sequence[float], sizes: Sequence[int], ratio: float) -> float:
    """The h at which the fraction ``ratio`` of all entries is sent in each step, found by bisection.

    ``rms``, ``sizes``: the rms of steps, and the number of entries, per layer.
    """

    def sent(h: float) -> float:
        return sum(n * min(1.0, (r / (h + OVERSHOOT * r)) ** 2) for r, n in zip(rms, sizes, strict=True) if r)

    k = ratio * sum(sizes)
    low, high = 0.0, (sum(n * r * r for r, n in zip(rms, sizes, strict=True)) / k) ** 0.5
    for _ in range(50):
        h = (low + high) / 2
        low, high = (h, high) if sent(h) > k else (low, h)
    return high
