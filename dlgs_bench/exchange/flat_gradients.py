"""The gradients of a model in one flat tensor, last layer first; buckets are slices of it.

So buckets are contiguous, as engines require, even if the model's layout is channels_last.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dlgs_bench.buckets import Plan
from dlgs_bench.exchange.method import Bucket


class FlatGradients:
    """The flat gradients of all parameters, and views of them. A layer is one parameter tensor.

    ``gradients``: shape (d,), in the order in which backward finishes layers; its dtype is ``dtype``, by default the
    dtype of the parameters.
    ``sizes``: entries per layer, in that order.
    ``shapes``: the shape of each layer in memory, largest stride first (channels_last puts channels last).
    ``views``: (parameter, slice of ``gradients`` with the parameter's shape and ``layout``) per layer.
    """

    def __init__(self, parameters: Iterable[Tensor], dtype: torch.dtype | None = None) -> None:
        layers = list(parameters)[::-1]
        self.sizes = [p.numel() for p in layers]
        self.shapes = [_memory_shape(p) for p in layers]
        self.starts = [sum(self.sizes[:i]) for i in range(len(self.sizes) + 1)]
        self.gradients = torch.zeros(self.starts[-1], dtype=dtype or layers[0].dtype, device=layers[0].device)
        pairs = zip(layers, self.starts, strict=False)
        self.views = [(p, self.gradients.as_strided(p.shape, layout(p), start)) for p, start in pairs]

    def slice(self, start: int, stop: int) -> Tensor:
        """The gradients of layers start .. stop - 1, as one flat view."""
        return self.gradients[self.starts[start] : self.starts[stop]]

    def buckets(self, groups: Plan, ratios: Sequence[float] = ()) -> list[Bucket]:
        """One bucket per (start, stop) range of layers, in order; ``ratios``: one per bucket, if a plan gives them."""
        pairs = zip(groups, ratios or [None] * len(groups), strict=True)
        return [
            Bucket(i, self.slice(start, stop), tuple(self.shapes[start:stop]), ratio)
            for i, ((start, stop), ratio) in enumerate(pairs)
        ]


def layout(p: Tensor) -> tuple[int, ...]:
    """The strides of p's gradient: the strides of p, or contiguous strides if p is a view with gaps or overlaps."""
    entries = 1
    for d in sorted(range(p.dim()), key=lambda d: (p.stride(d), p.shape[d])):
        if p.shape[d] != 1:
            if p.stride(d) != entries:
                return torch.empty(p.shape, device="meta").stride()
            entries *= p.shape[d]
    return p.stride()


def _memory_shape(p: Tensor) -> tuple[int, ...]:
    """The shape of the gradient in memory: the dimension with the largest stride first."""
    strides = layout(p)
    return tuple(p.shape[d] for d in sorted(range(p.dim()), key=lambda d: -strides[d]))
