"""A method in the place of Horovod's DistributedOptimizer."""

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from harness.comm.horovod import Horovod
from harness.hooks.hook import Hook


class HorovodHook(Hook):
    """Exchanges the gradients of ``model`` by ``method``, a file of ``methods/``, before each step of ``optimizer``:

        hook = HorovodHook(model, optimizer, "topk", ratio=0.01)

    after ``hvd.init()``, with the optimizer itself where hvd.DistributedOptimizer would wrap it; parameters are
    broadcast as ever. Exchanges begin while backward runs, and the first step after it waits for them; to clip
    gradients before, call ``synchronize``. One backward pass a step. ValueError in one line for what cannot work.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, method: str, *, bucket_cap_mb: float = 8.0, **options: Any
    ):
        if hasattr(optimizer, "skip_synchronize"):
            raise ValueError("the optimizer is Horovod's, which exchanges gradients itself: give the one it wraps")
        parameters = [p for p in model.parameters() if p.requires_grad]
        comm = Horovod(next(model.parameters()).device)
        super().__init__(parameters, optimizer, comm, method, options, bucket_cap_mb)
        self._arrived: set[int] = set()
        for layer, (parameter, place) in enumerate(self._flat.views):
            parameter.register_post_accumulate_grad_hook(self._hook(layer, place))
        optimizer.register_step_pre_hook(self._before_step)

    def synchronize(self) -> None:
        """Wait for the exchanges; the parameters' gradients are then the aggregate."""
        if self._arrived:
            self._exchange.finish()
            self._arrived.clear()

    def _hook(self, layer: int, place: Tensor):
        def hook(parameter: nn.Parameter) -> None:
            if layer in self._arrived:
                raise RuntimeError("a second backward pass before optimizer.step(): add up the losses of both instead")
            if not self._arrived:
                self._begin()
            self._arrived.add(layer)
            self._put(parameter.grad, place)
            parameter.grad = place
            self._exchange.ready(layer)

        return hook

    def _before_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        if len(positional) > 1 or named:  # the optimizer itself comes first
            raise ValueError("optimizer.step was given a closure, whose backward pass would come after the exchange")
        self.synchronize()
