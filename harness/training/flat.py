"""A model whose parameters and gradients lie in two flat tensors, last layer first.

Buckets are then slices, the optimizer takes one tensor, and what travels is contiguous (Horovod
insists) even where the model's own layout is channels_last.
"""

import torch
from torch import Tensor, nn


class FlatModel:
    """``parameters`` and ``gradients``: shape (d,), in the order in which backward finishes layers.

    ``sizes``: entries per layer in that order; a layer is one parameter tensor.
    ``shapes``: of each layer, in the order of its dimensions in memory (channels_last puts channels last).
    ``views``: (parameter, slice of ``gradients`` in the parameter's shape and strides) per layer.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        layers = list(model.named_parameters())[::-1]
        self.names = [name for name, _ in layers]
        self.sizes = [p.numel() for _, p in layers]
        self.shapes = [_memory_shape(p) for _, p in layers]
        self.parameters = torch.cat([_storage_order(p.detach()) for _, p in layers])
        self.gradients = torch.zeros_like(self.parameters)
        self.starts = [sum(self.sizes[:i]) for i in range(len(self.sizes) + 1)]
        self.views = []
        for (_, p), start in zip(layers, self.starts, strict=False):
            shape, strides = p.shape, p.stride()
            p.data = self.parameters.as_strided(shape, strides, start)
            self.views.append((p, self.gradients.as_strided(shape, strides, start)))

    def slice(self, start: int, stop: int) -> Tensor:
        """The gradient of layers start .. stop - 1, as one flat view."""
        return self.gradients[self.starts[start] : self.starts[stop]]

    def buffers(self) -> list[Tensor]:
        """The floating-point buffers (BatchNorm's running statistics)."""
        return [b for b in self.model.buffers() if b.is_floating_point()]


def _storage_order(p: Tensor) -> Tensor:
    """The entries of a dense tensor in memory order, flat."""
    return p.as_strided((p.numel(),), (1,), p.storage_offset())


def _memory_shape(p: Tensor) -> tuple[int, ...]:
    """The lengths of a dense tensor's dimensions, the one with the largest stride first."""
    return tuple(p.shape[d] for d in sorted(range(p.dim()), key=lambda d: -p.stride(d)))
