"""Checks that a worker's loss and gradient are finite. Accuracy runs check every step, since a NaN would spread."""

from typing import Protocol

import torch
from torch import Tensor

from dlgs_bench.errors import Ended
from dlgs_bench.exchange.async_device import is_async
from dlgs_bench.training.flat_model import FlatModel

HELP = "a lower learning rate or a warm-up may help"


class Listener(Protocol):
    """Sees the gradient of each layer during backward."""

    def ready(self, layer: int) -> None:
        """The gradient of a layer is in its bucket."""


class FiniteCheck:
    """Checks the gradient of each layer in one step, and passes it on to the exchange.

    On a GPU it raises its error at the end of the step, before a checkpoint of the step is saved.
    """

    def __init__(self, exchange: Listener, flat: FlatModel, step: int, worker: int) -> None:
        self._exchange, self._flat, self._where = exchange, flat, f"in step {step} on worker {worker}"
        self._unchecked: list[tuple[int, Tensor]] = []  # GPU: (layer, sum of its gradient), read at the end of the step

    def ready(self, layer: int) -> None:
        """Pass a layer on; ``Ended`` if an entry of its gradient or the sum of its entries is not finite."""
        start, stop = self._flat.starts[layer : layer + 2]
        total = self._flat.gradients[start:stop].sum()
        if is_async(total):
            self._unchecked.append((layer, total))
        elif not total.isfinite():
            raise self._ended(layer)
        self._exchange.ready(layer)

    def check(self, loss: Tensor) -> None:
        """``Ended`` if the loss, or on a GPU a layer's gradient, is not finite; ``loss``: a sum over some steps."""
        if self._unchecked:
            layers, totals = zip(*self._unchecked, strict=True)
            for layer, finite in zip(layers, torch.stack(totals).isfinite().tolist(), strict=True):
                if not finite:
                    raise self._ended(layer)
        if not loss.isfinite():
            raise Ended(f"the loss is not finite {self._where}; {HELP}")

    def _ended(self, layer: int) -> Ended:
        return Ended(f"the gradient of {self._flat.names[layer]} is not finite {self._where}; {HELP}")
