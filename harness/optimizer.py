"""SGD with momentum and weight decay on one flat tensor: a single fused pass."""

import torch
from torch import Tensor


class SGD:
    """w <- w - lr * v, v <- momentum * v + gradient + weight_decay * w, as ``torch.optim.SGD``.

    It calls the kernel that ``torch.optim.SGD(fused=True)`` calls, on CPU and CUDA; constructing the
    torch class imports the compiler, 3 s of every process. A test holds the two together.
    """

    def __init__(self, parameters: Tensor, lr: float, momentum: float, weight_decay: float):
        self.lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._parameters, self.velocity = parameters, torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        torch._fused_sgd_(
            [self._parameters], [gradient], [self.velocity],
            weight_decay=self._weight_decay, momentum=self._momentum, lr=self.lr,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
