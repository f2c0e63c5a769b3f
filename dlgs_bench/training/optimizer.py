"""SGD with momentum and weight decay on one flat tensor: a single fused pass."""

import torch
from torch import Tensor

VECTOR = 16  # entries: the longest vector of the CPU's kernel


class SGD:
    """v <- momentum * v + gradient + weight_decay * w; w <- w - lr * v. The same bits as ``torch.optim.SGD``.

    It calls the kernel of ``torch.optim.SGD(fused=True)``, on CPU and CUDA. The torch class itself is not used, since
    it imports the compiler, which takes 3 s in every process.
    """

    def __init__(self, parameters: Tensor, lr: float, momentum: float, weight_decay: float):
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.parameters, self.velocity = parameters, torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradient: Tensor, start: int = 0, stop: int | None = None) -> None:
        """Update the entries from ``start`` to ``stop`` - 1, or all; ``gradient`` has the shape of ``parameters``.

        A part gets the same bits as in a step over all entries. The kernel works on vectors and rounds a remainder
        differently. So a part is widened to whole vectors, and its neighbours are restored afterwards.
        """
        size = self.parameters.numel()
        stop = size if stop is None else stop
        first, last = start - start % VECTOR, min(size, stop + -stop % VECTOR)
        neighbours = [t[i:j] for t in (self.parameters, self.velocity) for i, j in ((first, start), (stop, last))]
        before = [t.clone() for t in neighbours]
        velocity = [self.velocity[first:last]] if self.momentum else []  # the kernel refuses an unused velocity
        torch._fused_sgd_(
            [self.parameters[first:last]], [gradient[first:last]], velocity,
            weight_decay=self.weight_decay, momentum=self.momentum, lr=self.lr,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
        for tensor, saved in zip(neighbours, before, strict=True):
            tensor.copy_(saved)
