"""The steady state of error feedback: what a residual looks like after long training, in closed form.

Read each entry as a random walk whose steps are as large as its layer's rms and which is set back to 0 when it is
sent, at a magnitude of h. Such an entry lies on (-h', h'), h' = h + 0.583 rms, with density (h' - |x|) / h'^2, and
a fraction (rms / h')^2 of the entries is sent in each step. 0.583 rms is by how much discrete steps overshoot a
boundary (Siegmund, Sequential Analysis, 1985, ch. X). h is where all layers together send the ratio asked for.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

OVERSHOOT = 0.583  # of a step's rms: how far a walk jumps beyond a boundary, on average


def stationary_residual(gradient: Tensor, sizes: Sequence[int], ratio: float) -> Tensor:
    """A residual drawn from the law, shape (d,), for layers of ``sizes`` entries whose gradient is ``gradient``."""
    rms = [float(layer.square().mean().sqrt()) for layer in gradient.split(sizes)]
    h = stationary_threshold(rms, sizes, ratio)
    residual = torch.rand_like(gradient).sub_(torch.rand_like(gradient))
    for layer, step in zip(residual.split(sizes), rms, strict=True):
        layer.mul_(h + OVERSHOOT * step)
    return residual.masked_fill_(residual.abs() >= h, 0.0)


def stationary_threshold(rms: Sequence[float], sizes: Sequence[int], ratio: float) -> float:
    """The h at which walks of such steps, ``sizes`` of each, reach h as often as ``ratio`` asks; by bisection."""

    def sent(h: float) -> float:
        return sum(n * min(1.0, (r / (h + OVERSHOOT * r)) ** 2) for r, n in zip(rms, sizes, strict=True) if r)

    k = ratio * sum(sizes)
    low, high = 0.0, (sum(n * r * r for r, n in zip(rms, sizes, strict=True)) / k) ** 0.5
    for _ in range(50):
        h = (low + high) / 2
        low, high = (h, high) if sent(h) > k else (low, h)
    return high
