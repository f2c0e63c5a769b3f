"""A method in the place of Horovod's DistributedOptimizer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dlgs_bench.comm.horovod_engine import Horovod
from dlgs_bench.hooks.hook import Hook, refuse_sparse


class HorovodHook(Hook):
    """Exchanges the gradients of ``model`` by ``method``, a file of ``methods/``, in each backward pass:

        hook = HorovodHook(model, optimizer, "topk", ratio=0.01)

    after ``hvd.init()``, with the optimizer itself where hvd.DistributedOptimizer would wrap it; parameters are
    broadcast as ever. Exchanges begin while backward runs. When it returns, gradients are the aggregate, as under
    DistributedDataParallel: they can be clipped, skipped or accumulated over several passes. A parameter that a pass
    does not use counts as zeros. ValueError in one line for what cannot work.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, method: str, *, bucket_cap_mb: float = 8.0, **options: Any
    ):
        if not isinstance(model, nn.Module):
            raise ValueError(f"model: {type(model).__qualname__} is not a torch.nn.Module; give the model first")
        if hasattr(optimizer, "skip_synchronize"):
            raise ValueError("the optimizer is Horovod's, which exchanges gradients itself: give the one it wraps")
        refuse_sparse(model)
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        parameters = [p for p in model.parameters() if p.requires_grad]
        comm = Horovod(next(model.parameters()).device)
        super().__init__(parameters, optimizer, comm, method, options, bucket_cap_mb)
        self._known = set(parameters)
        self._arrived: set[int] = set()
        self._earlier: dict[int, Tensor] = {}  # of passes before this one, that the script has kept
        for layer, (parameter, place) in enumerate(self._flat.views):
            parameter.register_hook(self._hook(layer, parameter, place))
        optimizer.register_step_pre_hook(self._before_step)

    def synchronize(self) -> None:
        """Does nothing: gradients are the aggregate when backward returns. For scripts that call it."""

    def _hook(self, layer: int, parameter: Tensor, place: Tensor):
        """Is called with a gradient before autograd adds it to what the parameter has."""

        def hook(gradient: Tensor) -> None:
            if layer in self._arrived:
                raise RuntimeError("the last backward pass was interrupted, so the workers' exchanges no longer match")
            if not self._arrived:
                self._begin()
                torch.autograd.Variable._execution_engine.queue_callback(self._end)
            self._arrived.add(layer)
            self._set_aside(layer, parameter)
            self._put(gradient.detach(), place)
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
            for layer, (parameter, place) in enumerate(self._flat.views):
                if layer not in self._arrived:
                    self._set_aside(layer, parameter)
                    place.zero_()
                    self._exchange.ready(layer)
            self._exchange.finish()
            for layer, (parameter, place) in enumerate(self._flat.views):
                earlier = self._earlier.get(layer)
                parameter.grad = place if earlier is None else earlier.add_(place)
        finally:
            self._arrived.clear()
            self._earlier.clear()

    def _before_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        if len(positional) > 1 or named:  # the optimizer itself comes first
            raise ValueError("optimizer.step was given a closure, whose backward pass would come after the exchange")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self._known:
                    name = self._names.get(parameter, f"a parameter of shape {tuple(parameter.shape)}")
                    raise ValueError(
                        f"{name} has a gradient that the hook does not exchange, so workers would drift apart; "
                        "it was added or unfrozen after the hook was made: make the hook afterwards"
                    )
