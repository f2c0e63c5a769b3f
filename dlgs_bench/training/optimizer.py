"""SGD with momentum and weight decay on one flat tensor: a single fused pass."""

import torch
from torch import Tensor

VECTOR = 16  # entries: the most that the CPU's kernel handles at once


class SGD:
    """w <- w - lr * v, v <- momentum * v + gradient + weight_decay * w, as ``torch.optim.SGD``.

    It calls the kernel that ``torch.optim.SGD(fused=True)`` calls, on CPU and CUDA; constructing the
    torch class imports the compiler, 3 s of every process. A test holds the two together.
    """

    def __init__(self, parameters: Tensor, lr: float, momentum: float, weight_decay: float):
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.parameters, self.velocity = parameters, torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradient: Tensor, start: int = 0, stop: int | None = None) -> None:
        """Update the entries start .. stop - 1, all unless given; ``gradient`` has the shape of all.

        A part is updated to the very bits that a step over all gives it. The kernel handles whole vectors and
        rounds the entries that are left over in another way, so a part is widened to whole vectors, and its
        neighbours are put back afterwards.
        """
        size = self.parameters.numel()
        stop = size if stop is None else stop
        first, last = start - start % VECTOR, min(size, stop + -stop % VECTOR)
        neighbours = [t[i:j] for t in (self.parameters, self.velocity) for i, j in ((first, start), (stop, last))]
        before = [t.clone() for t in neighbours]
        velocity = [self.velocity[first:last]] if self.momentum else []  # the kernel takes none without momentum
        torch._fused_sgd_(
            [self.parameters[first:last]], [gradient[first:last]], velocity,
            weight_decay=self.weight_decay, momentum=self.momentum, lr=self.lr,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
        for tensor, kept in zip(neighbours, before, strict=True):
            tensor.copy_(kept)
