"""The gradients of a model in one flat tensor, last layer first: buckets are slices of it.

What travels is then contiguous, as engines insist, even where the model's own layout is channels_last.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dlgs_bench.exchange.method import Bucket


class FlatGradients:
    """``gradients``: shape (d,), in the order in which backward finishes layers.

    ``sizes``: entries per layer in that order; a layer is one parameter tensor.
    ``shapes``: of each layer, in the order of its dimensions in memory (channels_last puts channels last).
    ``views``: (parameter, slice of ``gradients`` in the parameter's shape and ``layout``) per layer.
    ``dtype``: of ``gradients``; the parameters' own unless given.
    """

    def __init__(self, parameters: Iterable[Tensor], dtype: torch.dtype | None = None):
        layers = list(parameters)[::-1]
        self.sizes = [p.numel() for p in layers]
        self.shapes = [_memory_shape(p) for p in layers]
        self.starts = [sum(self.sizes[:i]) for i in range(len(self.sizes) + 1)]
        self.gradients = torch.zeros(self.starts[-1], dtype=dtype or layers[0].dtype, device=layers[0].device)
        pairs = zip(layers, self.starts, strict=False)
        self.views = [(p, self.gradients.as_strided(p.shape, layout(p), start)) for p, start in pairs]

    def slice(self, start: int, stop: int) -> Tensor:
        """The gradient of layers start .. stop - 1, as one flat view."""
        return self.gradients[self.starts[start] : self.starts[stop]]

    def buckets(self, groups: Sequence[tuple[int, int]], ratios: Sequence[float] = ()) -> list[Bucket]:
        """A bucket for each (start, stop) range of layers, in order; ``ratios``: of each, where a plan gives them."""
        pairs = zip(groups, ratios or [None] * len(groups), strict=True)
        return [
            Bucket(i, self.slice(start, stop), tuple(self.shapes[start:stop]), ratio)
            for i, ((start, stop), ratio) in enumerate(pairs)
        ]


def layout(p: Tensor) -> tuple[int, ...]:
    """The strides of p's gradient: those of p, or contiguous ones if p is a view with gaps or overlaps."""
    entries = 1
    for d in sorted(range(p.dim()), key=lambda d: (p.stride(d), p.shape[d])):
        if p.shape[d] != 1:
            if p.stride(d) != entries:
                return torch.empty(p.shape, device="meta").stride()
            entries *= p.shape[d]
    return p.stride()


def _memory_shape(p: Tensor) -> tuple[int, ...]:
    """The lengths of the gradient's dimensions, the one with the largest stride first."""
    strides = layout(p)
    return tuple(p.shape[d] for d in sorted(range(p.dim()), key=lambda d: -strides[d]))
