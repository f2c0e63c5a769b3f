"""The stationary state of error feedback: the distribution of a residual after long training.

If k entries are sent in each step, it has a closed form. We model each entry as a random walk. Its steps have the rms
of its layer, and it is reset to 0 when its magnitude reaches h, because it is then sent. Let h' = h + 0.583 rms, where
0.583 rms is the mean overshoot of discrete steps over a boundary (Siegmund, Sequential Analysis, 1985, ch. X). An entry
then lies in (-h', h') with density (h' - |x|) / h'^2, and a fraction (rms / h')^2 of the entries is sent in each step.
h is chosen so that all layers together send the requested ratio.

For other methods, the same walks are simulated with the method's own rule.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

OVERSHOOT = 0.583  # the mean overshoot of a walk over a boundary, divided by the rms of its steps
# A simulation has about this number of entries, and this number of steps.
SAMPLE, WARM_UP_STEPS = 20_000, 640


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


def simulated_residual(gradient: Tensor, sizes: Sequence[int], send: Callable[[Tensor, Tensor, int], object]) -> Tensor:
    """Draw a residual, shape (d,), by a simulation of many steps on a sample of each layer.

    ``sizes``: entries per layer of ``gradient``. ``send(corrected, drawn, step)`` makes a step: ``drawn`` is a gradient
    of normally distributed entries with the rms of their layers, and ``corrected`` is ``drawn`` + residual. ``send``
    subtracts from ``corrected`` what is sent, in place. A layer repeats the residual of its sample.
    """
    stride = max(1, len(gradient) // SAMPLE)
    layers = gradient.split(sizes)
    counts = [-(-len(layer) // stride) for layer in layers]
    rms = torch.cat([layer.square().mean().sqrt().expand(n) for layer, n in zip(layers, counts, strict=True)])
    residual = torch.zeros_like(rms)
    for step in range(1, WARM_UP_STEPS + 1):
        drawn = rms * torch.randn_like(rms)
        send(residual.add_(drawn), drawn, step)
    samples = zip(residual.split(counts), layers, strict=True)
    return torch.cat([sample.repeat(stride)[: len(layer)] for sample, layer in samples])
