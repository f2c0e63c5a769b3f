"""A method that replaces Horovod's DistributedOptimizer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dlgs_bench.comm.horovod_engine import Horovod
from dlgs_bench.exchange import Method
from dlgs_bench.exchange.finite import FiniteExchange
from dlgs_bench.hooks.hook import ParameterHook, plain_context, refuse_second_hook, refuse_sparse
from dlgs_bench.hooks.optimizers import has_closure, listed_optimizers
from dlgs_bench.hooks.wrappers import refuse_inner


class HorovodHook(ParameterHook):
    """Exchanges the gradients of ``model`` by ``method`` in each backward pass:

        hook = HorovodHook(model, optimizer, "topk", ratio=0.01)

    Call it after ``hvd.init()`` with the plain optimizer, without hvd.DistributedOptimizer. Broadcast the parameters as
    usual. Exchanges begin while backward runs. When backward returns, gradients are the aggregate, as under
    DistributedDataParallel. So they can be clipped, skipped or accumulated over several passes. A parameter that a pass
    does not use has a gradient of zeros.

    ``method``: the name of a file of ``methods/``, or a class. ``optimizer``: the model's optimizer, or a list.
    ``scaler``: the GradScaler that scales the loss, if there is one. ValueError in one line for unsupported arguments.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], method: str | type[Method],
        *, bucket_cap_mb: float = 8.0, scaler: torch.amp.GradScaler | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module):
            raise ValueError(f"model: {type(model).__qualname__} is not a torch.nn.Module; give the model first")
        for one in listed_optimizers(optimizer):
            _refuse_horovods(one)
        refuse_sparse(model)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        refuse_inner(model, parameters.values())
        refuse_second_hook(parameters)
        comm = Horovod(next(model.parameters(), torch.empty(0)).device)
        super().__init__(model, parameters, optimizer, comm, method, options, bucket_cap_mb, scaler)
        if self.method.baseline and getattr(self.method, "dtype", "") == "bfloat16":  # it sums in 16 bits
            raise ValueError(f"{self.name}.dtype: Horovod's all-reduce does not support bfloat16; give float16")
        self._listen([parameter for parameter, _ in self._flat.views])
        for layer, (parameter, _) in enumerate(self._flat.views):
            prepare = torch.compiler.disable(partial(self._prepare, layer, parameter))
            self._handles.append(parameter.register_hook(prepare))

    def synchronize(self) -> None:
        """Do nothing, for scripts that call it: gradients are the aggregate when backward returns."""

    def _prepare(self, layer: int, parameter: Tensor, gradient: Tensor) -> None:
        """Set the gradient of earlier passes aside, before autograd adds the gradient of this pass to it."""
        self._starts_pass()
        self._refuse_parts(layer)
        self._set_aside(layer, parameter)

    def _set_aside(self, layer: int, parameter: Tensor) -> None:
        self._drop_idle(parameter)
        if parameter.grad is not None:
            self._earlier[layer], parameter.grad = parameter.grad.detach(), None

    def _arrive(self, layer: int, parameter: Tensor) -> None:
        """Exchange the gradient of this pass, which the script's own tensor hooks may have changed."""
        self._check_arrival(layer)
        gradient = parameter.grad.detach()
        if gradient.layout != torch.strided:
            raise ValueError(f"{self._name_of(parameter)}: its gradient is sparse; give sparse=False")
        with plain_context(self._comm.device), self._all_workers():
            if not self._arrived:
                self._begin()
            self._arrived.add(layer)
            self._put(gradient, self._flat.views[layer][1])
            self._add_decay(layer, self._flat.slice(layer, layer + 1))
            self._ready(layer, used=True)

    def _end(self) -> None:
        """Wait for the exchanges after backward, and deliver the aggregate."""
        with self._all_workers():
            for layer, (parameter, view) in enumerate(self._flat.views):
                if layer not in self._arrived:
                    self._set_aside(layer, parameter)
                    view.zero_()
                    self._add_decay(layer, self._flat.slice(layer, layer + 1))
                    self._ready(layer, used=False)
            self._finish()
        aggregates = [view.to(parameter.dtype) for parameter, view in self._flat.views]
        self._conclude([self._flat.gradients, *(a for a in aggregates if a.dtype != torch.float32)])
        unused = self._unused()
        for layer, ((parameter, view), aggregate) in enumerate(zip(self._flat.views, aggregates, strict=True)):
            earlier = self._earlier.get(layer)
            if not parameter.requires_grad:  # frozen after the hook was made
                parameter.grad = earlier
                self._hold(parameter, aggregate)
                continue
            self._note_idle(parameter, layer in unused, earlier)
            if layer in unused:
                self._hold_unused(parameter, aggregate)
            if earlier is not None:
                parameter.grad = earlier.add_(aggregate)
            else:  # the script may keep this tensor, and the next pass writes to the view
                parameter.grad = aggregate.clone() if aggregate is view else aggregate
            if layer not in unused:
                self._deliver_held(parameter, parameter.grad)

    @contextmanager
    def _all_workers(self) -> Iterator[None]:
        """ValueError in one line if Horovod cannot gather because a worker is in hvd.join."""
        try:
            yield
        except RuntimeError as error:
            if not Horovod.refuses_join(error):
                raise
            self._refuse_join()

    def _restore(self) -> None:
        super()._restore()
        if isinstance(self._exchange, FiniteExchange) and self._exchange.incomplete:
            self._refuse_join()

    def _refuse_join(self) -> None:
        Horovod.join()
        raise ValueError(
            f"hvd.join: {self.name} needs every worker in every pass; give all workers the same number of batches, or "
            'use the method "none"'
        ) from None

    def _check_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        _refuse_horovods(optimizer)
        if has_closure(positional, named):
            kind = type(optimizer).__qualname__
            raise ValueError(
                f"{kind}.step was given a closure, whose losses differ between workers; call backward before the step"
            )
        super()._check_step(optimizer, positional, named)


def _refuse_horovods(optimizer: Optimizer) -> None:
    """ValueError in one line for hvd.DistributedOptimizer, which exchanges gradients a second time."""
    if hasattr(optimizer, "skip_synchronize"):
        raise ValueError("optimizer: Horovod's exchanges gradients itself; give the optimizer that it wraps")
