"""The optimizers of a run, each on one flat tensor; ``optimizer_of`` builds the optimizer that a recipe names.

They call the functions that the classes of ``torch.optim`` call. Constructing such a class imports the compiler, 3 s of
every process. Tests compare the two.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim import _muon

from dlgs_bench.spec import Training

VECTOR = 16  # entries: the most that the CPU's kernel handles at once
EPS = 1e-8  # of AdamW, torch's default
TIMED_LR = 1e-4  # in runs that measure time: so small that the weights and the gradient hardly change


class Optimizer(ABC):
    """Updates ``parameters``, shape (d,), in place. ``lr`` may change before each step."""

    def __init__(self, parameters: Tensor, lr: float, weight_decay: float) -> None:
        self.parameters, self.lr, self.weight_decay = parameters, lr, weight_decay

    @abstractmethod
    def step(self, gradient: Tensor) -> None:
        """Make one step; ``gradient`` has the shape of ``parameters``."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """All that a resumed run needs besides the parameters; the tensors are the optimizer's own."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from ``state``, which is copied."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


class SGD(Optimizer):
    """v <- momentum * v + gradient + weight_decay * w, then w <- w - lr * v, as ``torch.optim.SGD(fused=True)``."""

    def __init__(self, parameters: Tensor, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.momentum, self.velocity = momentum, torch.zeros_like(parameters)

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

    def state_dict(self) -> dict[str, Tensor]:
        return {"velocity": self.velocity}


class AdamW(Optimizer):
    """AdamW (Loshchilov, Hutter, Decoupled Weight Decay Regularization, ICLR 2019), as
    ``torch.optim.AdamW(fused=True)``.

    ``ranges``: (start, stop) of the entries that it updates; all unless given.
    """

    def __init__(
        self,
        parameters: Tensor,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        ranges: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(parameters, lr, weight_decay)
        self.betas, self.ranges = betas, [(0, parameters.numel())] if ranges is None else ranges
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self.steps = torch.zeros((), device=parameters.device)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        self.steps += 1
        parameters, gradients, means, squares = (
            [tensor[start:stop] for start, stop in self.ranges]
            for tensor in (self.parameters, gradient, self.mean, self.square)
        )
        torch._fused_adamw_(
            parameters, gradients, means, squares, [], [self.steps] * len(self.ranges),
            lr=self.lr, beta1=self.betas[0], beta2=self.betas[1], weight_decay=self.weight_decay, eps=EPS,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "square": self.square, "steps": self.steps}


class Muon(Optimizer):
    """Muon (Jordan et al., 2024) for ``matrices``, as ``torch.optim.Muon``, and AdamW for all other parameters.

    ``matrices``: views of ``parameters``. The update of a matrix is scaled by 0.2 sqrt(its longer side), so that one
    learning rate and one weight decay suit both (Liu et al., Muon is Scalable for LLM Training, arXiv 2502.16982,
    2025). ValueError without matrices.
    """

    def __init__(
        self,
        parameters: Tensor,
        matrices: Sequence[Tensor],
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        if not matrices:
            raise ValueError("optimizer: muon updates matrices of hidden layers, and the model has none; give adamw")
        super().__init__(parameters, lr, weight_decay)
        self.momentum, self.velocity = momentum, torch.zeros_like(parameters)
        self._matrices = sorted(matrices, key=Tensor.storage_offset)
        edges = [(int(m.storage_offset()), int(m.storage_offset()) + m.numel()) for m in self._matrices]
        around = [(0, 0), *edges, (len(parameters), len(parameters))]
        rest = [(stop, start) for (_, stop), (start, _) in pairwise(around) if stop < start]
        self._others = AdamW(parameters, lr, betas, weight_decay, rest)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        self._others.lr = self.lr
        self._others.step(gradient)
        _muon.muon(
            *map(self._cut, (self.parameters, gradient, self.velocity)),
            lr=self.lr, weight_decay=self.weight_decay, momentum=self.momentum, nesterov=True,
            ns_coefficients=(_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C), ns_steps=_muon.DEFAULT_NS_STEPS,
            eps=_muon.EPS, adjust_lr_fn="match_rms_adamw", has_complex=False,
        )  # fmt: skip

    def _cut(self, flat: Tensor) -> list[Tensor]:
        """The matrices in ``flat``, as views with their shapes."""
        return [flat.as_strided(m.shape, m.stride(), m.storage_offset()) for m in self._matrices]

    def state_dict(self) -> dict[str, Tensor]:
        return {"velocity": self.velocity} | self._others.state_dict()


def optimizer_of(training: Training, parameters: Tensor, matrices: Sequence[Tensor] = ()) -> Optimizer:
    """The optimizer that the recipe names. ``matrices``: the model's hidden matrices, as views of ``parameters``."""
    lr, decay = training.lr, training.weight_decay
    match training.optimizer:
        case "sgd":
            return SGD(parameters, lr, training.momentum, decay)
        case "adamw":
            return AdamW(parameters, lr, training.betas, decay)
        case "muon":
            return Muon(parameters, matrices, lr, training.momentum, training.betas, decay)
