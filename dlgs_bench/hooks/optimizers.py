"""The momentum and the weight decay of the optimizers in a user's script."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

# Optimizers of torch that add weight decay to the gradient, so that momentum amplifies it.
COUPLED = (
    torch.optim.SGD, torch.optim.ASGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta,
    torch.optim.Adam, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam,
)  # fmt: skip


def listed_optimizers(given: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """The optimizers of a model as a list; ValueError in one line if one is not an optimizer."""
    optimizers: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
            raise ValueError(f"optimizer: {kind} is not a torch.optim.Optimizer; give the model's optimizer")
    if not optimizers:
        raise ValueError("optimizer: the list is empty; give the model's optimizers")
    inner = [getattr(one, "optimizer", one) for one in optimizers]  # what Accelerate has wrapped
    return [own if isinstance(own, Optimizer) else one for one, own in zip(optimizers, inner, strict=True)]


def refuse_stranger(optimizer: Optimizer, model: nn.Module, where: str = "") -> None:
    """ValueError in one line if no parameter of ``optimizer`` belongs to ``model``.

    ``where``: the beginning of the message.
    """
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        kind = type(optimizer).__qualname__
        why = f"{kind} has no parameter of the model"
        raise ValueError(f"{where}optimizer: {why}; make it from this model's parameters")


def momentum_of(optimizer: Optimizer) -> str | None:
    """The momentum of an optimizer, or the betas of an optimizer such as Adam, in words; None without momentum."""
    for group in optimizer.param_groups:
        if group.get("momentum"):
            return f"momentum={group['momentum']}"
        if group.get("betas", (0.0,))[0]:
            return f"betas={tuple(group['betas'])}"
    return None


def coupled_decays(optimizer: Optimizer) -> Iterator[tuple[dict, float]]:
    """(group, decay) of every group whose weight decay is added to the gradient; negative if SGD maximises.

    ValueError in one line if weights decay in a ``step`` that is not torch's, since its kind of weight decay is not
    known. A subclass of SGD whose ``step`` calls SGD's is refused too: what else it does cannot be seen.
    """
    for group in optimizer.param_groups:
        decay = group.get("weight_decay", 0.0)
        if not decay:
            continue
        if not type(optimizer).step.__module__.startswith("torch.optim"):  # torch's wrappers of a step keep its module
            raise ValueError(
                f"weight_decay: {decay} of {type(optimizer).__qualname__} may or may not belong before the method's "
                "momentum; give weight_decay=0 and add the decay to the loss, or use an optimizer of torch"
            )
        decoupled = group.get("decoupled_weight_decay") or isinstance(optimizer, torch.optim.AdamW)
        if isinstance(optimizer, COUPLED) and not decoupled:
            yield group, -decay if group.get("maximize") else decay


def rate_of(optimizers: Iterable[Optimizer]) -> float:
    """The first learning rate above 0 of the groups; 0 if there is none. Layers that stay as they are may have 0."""
    rates = (float(group.get("lr") or 0.0) for optimizer in optimizers for group in optimizer.param_groups)
    return next((rate for rate in rates if rate > 0), 0.0)


def has_closure(positional: tuple, named: dict) -> bool:
    """Whether the arguments of a step, as torch gives them to hooks of optimizers, contain a closure."""
    # The first argument is the optimizer. Accelerate's optimizers give None as the closure.
    return any(one is not None for one in (*positional[1:], named.get("closure")))


class JoinedDecay:
    """The weight decay of a model's optimizers, which the hook adds to the gradient. It is off while they step.

    Parameters that no such hook exchanges get their weight decay in the step: it is added to their gradient until the
    step ends. ``joined``: returns the ids of all others. After ``remove``, the optimizers apply their weight decay
    again.
    """

    def __init__(self, optimizers: Iterable[Optimizer], joined: Callable[[], set[int]]) -> None:
        self._optimizers, self._joined = list(optimizers), joined
        self._off: list[tuple[dict, float]] = []
        self._changed: list[tuple[Tensor, Tensor, Tensor]] = []  # parameter, its gradient without and with decay
        self._handles: list[RemovableHandle] = []
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self.restore))
            self._handles.append(optimizer.register_state_dict_pre_hook(self.restore))  # after a step that raised

    def remove(self) -> None:
        """Leave the weight decay to the optimizers. A step that raised may have left it off."""
        self.restore()
        for handle in self._handles:
            handle.remove()

    def by_parameter(self) -> dict[Tensor, float]:
        """Parameter -> its weight decay in this step, for parameters with weight decay."""
        for group, decay in self._off:  # a closure calls backward within a step
            group["weight_decay"] = decay
        pairs = [pair for optimizer in self._optimizers for pair in coupled_decays(optimizer)]
        for group, _ in self._off:
            group["weight_decay"] = 0.0
        return {parameter: decay for group, decay in pairs for parameter in group["params"]}

    def _before_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        self.restore()  # after a step that raised
        joined, closure = self._joined(), has_closure(positional, named)
        for group, decay in coupled_decays(optimizer):
            self._off.append((group, group["weight_decay"]))
            group["weight_decay"] = 0.0
            for p in group["params"]:
                if id(p) in joined:
                    continue
                if closure:
                    raise ValueError(
                        f"{type(optimizer).__qualname__}.step was given a closure, and decays a parameter of shape "
                        f"{tuple(p.shape)} that the hook does not exchange; give this parameter another optimizer"
                    )
                if p.grad is not None:
                    self._changed.append((p, p.grad, p.grad.add(p.detach(), alpha=decay)))
                    p.grad = self._changed[-1][-1]

    def restore(self, *_: object) -> None:
        """Give the optimizers their weight decay back: after a step, also after one that raised."""
        for group, decay in self._off:
            group["weight_decay"] = decay
        for parameter, gradient, decayed in self._changed:
            if parameter.grad is decayed:
                parameter.grad = gradient
        self._off.clear()
        self._changed.clear()
