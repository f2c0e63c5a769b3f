"""Compares the aggregate of an exchange with the true mean of the workers' gradients. Timing runs do not use it."""

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.exchange.driver import Exchange
from dlgs_bench.exchange.fidelity import squares
from dlgs_bench.training.flat_model import FlatModel

COLUMNS = ("squared_error", "squared_mean")  # of a step with a probe


class ErrorProbe:
    """Copies the gradient of each layer in one step, and passes the layer on to the exchange."""

    def __init__(self, exchange: Exchange, flat: FlatModel) -> None:
        self._exchange, self._flat = exchange, flat
        self._copies = torch.zeros_like(flat.gradients)

    def ready(self, layer: int) -> None:
        start, stop = self._flat.starts[layer : layer + 2]
        self._copies[start:stop] = self._flat.gradients[start:stop]
        self._exchange.ready(layer)

    def errors(self, comm: Communicator) -> dict[str, float]:
        """``COLUMNS`` of the step that has ended. Every process calls it."""
        return dict(zip(COLUMNS, squares(self._flat.gradients, comm.allreduce(self._copies)), strict=True))
