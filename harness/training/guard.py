"""Whether a worker's loss and gradient are finite. Accuracy runs look in every step, since what is not would spread."""

from torch import Tensor

from harness.launch.liveness import Ended
from harness.training.flat import FlatModel

HELP = "a lower learning rate or a warm-up may help"


class Guard:
    """Stands before an exchange for one step, and lets no layer's gradient through that is not finite."""

    def __init__(self, exchange, flat: FlatModel, step: int, worker: int):
        self._exchange, self._flat, self._where = exchange, flat, f"in step {step} on worker {worker}"

    def ready(self, layer: int) -> None:
        """``Ended`` if an entry is not finite, or all together are beyond what a model can learn with."""
        start, stop = self._flat.starts[layer : layer + 2]
        if not self._flat.gradients[start:stop].sum().isfinite():
            raise Ended(f"the gradient of {self._flat.names[layer]} is not finite {self._where}; {HELP}")
        self._exchange.ready(layer)

    def check(self, loss: Tensor) -> None:
        """``Ended`` if the loss is not finite; ``loss``: a sum that holds this step's."""
        if not loss.isfinite():
            raise Ended(f"the loss is not finite {self._where}; {HELP}")
