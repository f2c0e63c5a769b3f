"""A method in the place of Horovod's DistributedOptimizer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dlgs_bench.comm.horovod_engine import Horovod
from dlgs_bench.hooks.callers import refuse_inner_backward
from dlgs_bench.hooks.hook import Hook, plain_context, refuse_sparse
from dlgs_bench.hooks.optimizers import listed_optimizers


class HorovodHook(Hook):
    """Exchanges the gradients of ``model`` by ``method``, a file of ``methods/``, in each backward pass:

        hook = HorovodHook(model, optimizer, "topk", ratio=0.01)

    after ``hvd.init()``, with the optimizer itself where hvd.DistributedOptimizer would wrap it; parameters are
    broadcast as ever. Exchanges begin while backward runs. When it returns, gradients are the aggregate, as under
    DistributedDataParallel: they can be clipped, skipped or accumulated over several passes. A parameter that a pass
    does not use counts as zeros. ``optimizer``: the model's, or a list of them. ``scaler``: the GradScaler that scales
    the loss, if there is one. ValueError in one line for what cannot work.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], method: str,
        *, bucket_cap_mb: float = 8.0, scaler: torch.amp.GradScaler | None = None, **options: Any,
    ):  # fmt: skip
        if not isinstance(model, nn.Module):
            raise ValueError(f"model: {type(model).__qualname__} is not a torch.nn.Module; give the model first")
        if any(hasattr(one, "skip_synchronize") for one in listed_optimizers(optimizer)):
            raise ValueError("the optimizer is Horovod's, which exchanges gradients itself: give the one it wraps")
        refuse_sparse(model)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        comm = Horovod(next(model.parameters()).device)
        super().__init__(model, parameters, optimizer, comm, method, options, bucket_cap_mb, scaler)
        self._arrived: set[int] = set()
        self._earlier: dict[int, Tensor] = {}  # of passes before this one, that the script has kept
        for layer, (parameter, place) in enumerate(self._flat.views):
            self._handles.append(parameter.register_hook(self._hook(layer, parameter, place)))

    def synchronize(self) -> None:
        """Does nothing: gradients are the aggregate when backward returns. For scripts that call it."""

    def _hook(self, layer: int, parameter: Tensor, place: Tensor):
        """Is called with a gradient before autograd adds it to what the parameter has."""

        def hook(gradient: Tensor) -> None:
            if layer in self._arrived:
                raise RuntimeError("the last backward pass was interrupted, so the workers' exchanges no longer match")
            if gradient.layout != torch.strided:
                raise ValueError(f"{self._name_of(parameter)}: its gradient is sparse; give sparse=False")
            with plain_context(self._comm.device):
                if not self._arrived:
                    refuse_inner_backward()
                    self._begin()
                    torch.autograd.Variable._execution_engine.queue_callback(self._end)
                self._arrived.add(layer)
                self._set_aside(layer, parameter)
                self._put(gradient.detach(), place)
                self._add_decay(layer, self._flat.slice(layer, layer + 1))
                self._exchange.ready(layer)

        return hook

    def _set_aside(self, layer: int, parameter: Tensor) -> None:
        """Keep the aggregate of earlier passes, which may lie where this pass's gradient goes."""
        if parameter.grad is not None:
            self._earlier[layer] = parameter.grad.detach().clone()
            parameter.grad = None

    def _end(self) -> None:
        """Backward has ended: wait for the exchanges, and hand over the aggregate."""
        try:
            with plain_context(self._comm.device):
                self._hand_over()
        finally:
            self._arrived.clear()
            self._earlier.clear()

    def _hand_over(self) -> None:
        for layer, (parameter, place) in enumerate(self._flat.views):
            if layer not in self._arrived:
                self._set_aside(layer, parameter)
                place.zero_()
                if parameter.requires_grad:
                    self._add_decay(layer, self._flat.slice(layer, layer + 1))
                self._exchange.ready(layer)
        self._finish()
        aggregates = [place.to(parameter.dtype) for parameter, place in self._flat.views]
        self._conclude([self._flat.gradients, *(a for a in aggregates if a.dtype != torch.float32)])
        for layer, ((parameter, _), aggregate) in enumerate(zip(self._flat.views, aggregates, strict=True)):
            earlier = self._earlier.get(layer)
            if not parameter.requires_grad:  # frozen after the hook was made
                parameter.grad = earlier
            else:
                parameter.grad = aggregate if earlier is None else earlier.add_(aggregate)

    def _check_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        if len(positional) > 1 or named.get("closure") is not None:  # the optimizer itself comes first
            kind = type(optimizer).__qualname__
            raise ValueError(
                f"{kind}.step was given a closure, whose losses differ between workers; call backward before the step"
            )
        super()._check_step(optimizer, positional, named)
