"""Whether a worker's loss and gradient are finite. Accuracy runs look in every step, since what is not would spread."""

import torch
from torch import Tensor

from dlgs_bench.exchange.async_device import is_async
from dlgs_bench.launch.liveness import Ended
from dlgs_bench.training.flat import FlatModel

HELP = "a lower learning rate or a warm-up may help"


class FiniteCheck:
    """Stands before an exchange for one step, and lets no layer's gradient through that is not finite; on a GPU it says
    so when the step has ended, before anything of it is saved."""

    def __init__(self, exchange, flat: FlatModel, step: int, worker: int):
        self._exchange, self._flat, self._where = exchange, flat, f"in step {step} on worker {worker}"
        self._later: list[tuple[int, Tensor]] = []  # layers, and sums of theirs that the host does not wait for

    def ready(self, layer: int) -> None:
        """``Ended`` if an entry is not finite, or all together are beyond what a model can learn with."""
        start, stop = self._flat.starts[layer : layer + 2]
        total = self._flat.gradients[start:stop].sum()
        if is_async(total):
            self._later.append((layer, total))
        elif not total.isfinite():
            raise self._ended(layer)
        self._exchange.ready(layer)

    def check(self, loss: Tensor) -> None:
        """``Ended`` if the loss is not finite, or on a GPU a layer's gradient; ``loss``: a sum with this step's."""
        if self._later:
            layers, totals = zip(*self._later, strict=True)
            for layer, finite in zip(layers, torch.stack(totals).isfinite().tolist(), strict=True):
                if not finite:
                    raise self._ended(layer)
        if not loss.isfinite():
            raise Ended(f"the loss is not finite {self._where}; {HELP}")

    def _ended(self, layer: int) -> Ended:
        return Ended(f"the gradient of {self._flat.names[layer]} is not finite {self._where}; {HELP}")
