"""A method that replaces Horovod's DistributedOptimizer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dlgs_bench.comm.horovod_engine import Horovod
from dlgs_bench.hooks.callers import refuse_inner_backward
from dlgs_bench.hooks.hook import INTERRUPTED, Hook, plain_context, refuse_sparse
from dlgs_bench.hooks.optimizers import listed_optimizers


class HorovodHook(Hook):
    """Exchanges the gradients of ``model`` by ``method``, a file of ``methods/``, in each backward pass:

        hook = HorovodHook(model, optimizer, "topk", ratio=0.01)

    Call it after ``hvd.init()`` with the plain optimizer, without hvd.DistributedOptimizer. Broadcast the parameters as
    usual. Exchanges begin while backward runs. When backward returns, gradients are the aggregate, as under
    DistributedDataParallel. So they can be clipped, skipped or accumulated over several passes. A parameter that a pass
    does not use has a gradient of zeros.

    ``optimizer``: the model's optimizer, or a list. ``scaler``: the GradScaler that scales the loss, if there is one.
    ValueError in one line for unsupported arguments.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], method: str,
        *, bucket_cap_mb: float = 8.0, scaler: torch.amp.GradScaler | None = None, **options: Any,
    ):  # fmt: skip
        if not isinstance(model, nn.Module):
            raise ValueError(f"model: {type(model).__qualname__} is not a torch.nn.Module; give the model first")
        if any(hasattr(one, "skip_synchronize") for one in listed_optimizers(optimizer)):
            raise ValueError("optimizer: Horovod's exchanges gradients itself; give the optimizer that it wraps")
        refuse_sparse(model)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        comm = Horovod(next(model.parameters()).device)
        super().__init__(model, parameters, optimizer, comm, method, options, bucket_cap_mb, scaler)
        self._arrived: set[int] = set()
        self._earlier: dict[int, Tensor] = {}  # gradients of earlier passes that the script accumulates
        for layer, (parameter, view) in enumerate(self._flat.views):
            self._handles.append(parameter.register_hook(self._hook(layer, parameter, view)))

    def synchronize(self) -> None:
        """Do nothing, for scripts that call it: gradients are the aggregate when backward returns."""

    def _hook(self, layer: int, parameter: Tensor, view: Tensor):
        """A hook that exchanges a gradient before autograd adds it to the gradient of the parameter."""

        def hook(gradient: Tensor) -> None:
            if layer in self._arrived:
                raise RuntimeError(INTERRUPTED)
            if gradient.layout != torch.strided:
                raise ValueError(f"{self._name_of(parameter)}: its gradient is sparse; give sparse=False")
            with plain_context(self._comm.device):
                if not self._arrived:
                    refuse_inner_backward()
                    self._begin()
                    torch.autograd.Variable._execution_engine.queue_callback(self._end)
                self._arrived.add(layer)
                self._set_aside(layer, parameter)
                self._put(gradient.detach(), view)
                self._add_decay(layer, self._flat.slice(layer, layer + 1))
                self._exchange.ready(layer)

        return hook

    def _set_aside(self, layer: int, parameter: Tensor) -> None:
        """Keep the aggregate of earlier passes, which may share memory with the gradient of this pass."""
        if parameter.grad is not None:
            self._earlier[layer] = parameter.grad.detach().clone()
            parameter.grad = None

    def _end(self) -> None:
        """Wait for the exchanges after backward, and deliver the aggregate."""
        try:
            with plain_context(self._comm.device):
                self._hand_over()
        finally:
            self._arrived.clear()
            self._earlier.clear()

    def _hand_over(self) -> None:
        for layer, (parameter, view) in enumerate(self._flat.views):
            if layer not in self._arrived:
                self._set_aside(layer, parameter)
                view.zero_()
                if parameter.requires_grad:
                    self._add_decay(layer, self._flat.slice(layer, layer + 1))
                self._exchange.ready(layer)
        self._finish()
        aggregates = [view.to(parameter.dtype) for parameter, view in self._flat.views]
        self._conclude([self._flat.gradients, *(a for a in aggregates if a.dtype != torch.float32)])
        for layer, ((parameter, _), aggregate) in enumerate(zip(self._flat.views, aggregates, strict=True)):
            earlier = self._earlier.get(layer)
            if not parameter.requires_grad:  # frozen after the hook was made
                parameter.grad = earlier
            else:
                parameter.grad = aggregate if earlier is None else earlier.add_(aggregate)

    def _check_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        if len(positional) > 1 or named.get("closure") is not None:  # the first positional argument is the optimizer
            kind = type(optimizer).__qualname__
            raise ValueError(
                f"{kind}.step was given a closure, whose losses differ between workers; call backward before the step"
            )
        super()._check_step(optimizer, positional, named)
