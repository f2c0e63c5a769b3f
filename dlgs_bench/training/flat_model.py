"""A model whose parameters are views of one flat tensor, so that the optimizer updates a single tensor."""

import zlib

import torch
from torch import Tensor, nn

from dlgs_bench.comm import distinct
from dlgs_bench.exchange.flat_gradients import FlatGradients, layout
from dlgs_bench.training.build import hidden_matrices, trainable


class FlatModel(FlatGradients):
    """A model, its flat parameters and its flat gradients.

    ``parameters``: shape (d,), in the order of ``gradients``. The parameters of the model are views of it. Frozen
    parameters are left out of both.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(trainable(model).values())
        self.model = model
        self.names = list(trainable(model))[::-1]
        self.parameters = torch.cat([_storage_order(p.detach()) for p, _ in self.views])
        for (p, _), start in zip(self.views, self.starts, strict=False):
            p.data = self.parameters.as_strided(p.shape, layout(p), start)

    def matrices(self) -> list[Tensor]:
        """The weights of hidden layers that are matrices, as views of ``parameters``."""
        return [p.detach() for p in hidden_matrices(self.model).values()]

    def checksum(self) -> str:
        """CRC-32 of all parameters. Runs with equal checksums ended with the same bits."""
        return f"{zlib.crc32(self.parameters.cpu().numpy().data):08x}"

    def buffers(self) -> list[Tensor]:
        """The floating-point buffers (BatchNorm's running statistics)."""
        return [distinct(b) for b in self.model.buffers() if b.is_floating_point()]


def _storage_order(p: Tensor) -> Tensor:
    """The entries of a tensor in the order of its ``layout``, flat."""
    if layout(p) != p.stride():
        return p.reshape(-1)
    return p.as_strided((p.numel(),), (1,), p.storage_offset())
