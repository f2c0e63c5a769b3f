"""What an exchange makes of the workers' gradients, beside their true mean. Nothing of it is in a timed run."""

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.exchange.driver import Exchange
from dlgs_bench.exchange.fidelity import squares
from dlgs_bench.training.flat import FlatModel

COLUMNS = ("squared_error", "squared_mean")  # of a step that had a witness


class ErrorProbe:
    """Stands before an exchange for one step, and keeps every layer's gradient as it arrives."""

    def __init__(self, exchange: Exchange, flat: FlatModel):
        self._exchange, self._flat = exchange, flat
        self._kept = torch.zeros_like(flat.gradients)

    def ready(self, layer: int) -> None:
        start, stop = self._flat.starts[layer : layer + 2]
        self._kept[start:stop] = self._flat.gradients[start:stop]
        self._exchange.ready(layer)

    def found(self, comm: Communicator) -> dict[str, float]:
        """``COLUMNS`` of the step that has ended; every process calls it."""
        return dict(zip(COLUMNS, squares(self._flat.gradients, comm.allreduce(self._kept)), strict=True))
