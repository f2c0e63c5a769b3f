"""What a method needs to exchange the gradients of a training loop that is not ours."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dlgs_bench import plugins
from dlgs_bench.buckets import assign_buckets
from dlgs_bench.comm import Communicator
from dlgs_bench.errors import listed, meant, wrong_options
from dlgs_bench.exchange import LocalSteps, Method, StepContext
from dlgs_bench.exchange.driver import WorkerExchange
from dlgs_bench.exchange.flat import FlatGradients
from dlgs_bench.exchange.plugin import about, method_class
from dlgs_bench.exchange.transport import transport
from dlgs_bench.topology import ALL_GATHER


class Hook:
    """One worker's part in the exchanges of a method; ``ddp`` and ``horovod`` bring it the gradients.

    The buckets are the method's own, not the engine's: one for the model, for each layer, or for layers merged up to
    ``bucket_cap_mb`` MiB, as its ``scope`` says. A scope of "plan" merges by size too, since nothing was calibrated.
    ``ends``: layers, in the order in which backward finishes them, before which a bucket of layers ends in any case.
    ``step``: backward passes exchanged so far. The learning rate that a method sees is that of the optimizer's first
    group. Gradients must come unscaled: a residual outlives the scale of a GradScaler.
    """

    def __init__(
        self, parameters: Iterable[Parameter], optimizer: Optimizer, comm: Communicator,
        method: str, options: dict[str, Any], bucket_cap_mb: float, ends: Sequence[int] = (),
    ):  # fmt: skip
        self.name, self.method, self.step = method, _made(method, options), 0
        if not isinstance(optimizer, Optimizer):
            kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
            raise ValueError(f"optimizer: {kind} is not a torch.optim.Optimizer; give the model's optimizer")
        self._refuse_momentum(optimizer)
        self._optimizer, self._comm, self._flat = optimizer, comm, FlatGradients(_float32(parameters))
        groups, most = [], int(min(bucket_cap_mb * 2**20 / 4, sum(self._flat.sizes)))
        bounds = [0, *(ends if self.method.scope != "model" else ()), len(self._flat.sizes)]
        for start, stop in pairwise(bounds):
            within = assign_buckets(self._flat.sizes[start:stop], self.method.scope, "size", most)
            groups += [(start + first, start + last) for first, last in within]
        buckets, untimed = self._flat.buckets(groups), lambda label: nullcontext()
        self._exchange = WorkerExchange(self.method, groups, buckets, transport(ALL_GATHER, comm), untimed)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs of this worker: residuals differ, so every worker saves its own.

        Tensors are the method's own, not copies.
        """
        return {"of": self._identity, "step": self.step, "method": self.method.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, which is copied; ValueError in one line if it is of another method or other buckets."""
        saved, here = state["of"], self._identity
        for name in sorted({*saved.get("options", {}), *here["options"]}):
            values = [of.get("options", {}).get(name, "not set") for of in (saved, here)]
            if saved["method"] == here["method"] and values[0] != values[1]:
                raise ValueError(f"the state is of {self.name} with {name}={values[0]}, here it is {values[1]}")
        if saved != here:
            raise ValueError(f"the state is of {_named(saved)}; here is {_named(here)}")
        self.method.load_state_dict(_copied(state["method"], self._comm.device))
        self.step = state["step"]

    @property
    def _identity(self) -> dict[str, Any]:
        place = {"rank": self._comm.rank, "workers": self._comm.world_size}
        options = {name: getattr(self.method, name) for name in about(self.name)["fields"]}
        buckets = [bucket.size for bucket in self._exchange.buckets]
        return {"method": self.name, "options": options, **place, "buckets": buckets}

    def _refuse_momentum(self, optimizer: Optimizer) -> None:
        """ValueError in one line if momentum would be applied twice: schedulers may set it at any time."""
        if self.method.owns_momentum and (given := _momentum(optimizer)):
            raise ValueError(f"{self.name} applies momentum itself, and the optimizer has {given}: give one without")

    def _begin(self) -> None:
        """A backward pass has brought its first gradient."""
        self._refuse_momentum(self._optimizer)
        self.step += 1
        lr = float(self._optimizer.param_groups[0]["lr"])
        self._exchange.begin(StepContext(self.step, self._comm.rank, self._comm.world_size, lr))

    def _put(self, gradient: Tensor, place: Tensor) -> None:
        """Put a gradient into its place in the buckets, divided by the workers: sums become means."""
        torch.mul(gradient, 1 / self._comm.world_size, out=place)


def _made(name: str, options: dict[str, Any]) -> Method:
    """The method in ``methods/<name>.py`` with these parameters; ValueError in one line if there is no such thing."""
    known = plugins.names("methods")
    if name not in known:
        raise ValueError(f"no method {name!r}{meant(name, known)}; {listed(known)}")
    if issubclass(method_class(name), LocalSteps):
        raise ValueError(f"{name} exchanges weights after local steps, and a hook gradients: give another method")
    if wrong := wrong_options(name, about(name)["fields"], options):
        raise ValueError(wrong)
    return method_class(name)(**options)


def refuse_sparse(model: torch.nn.Module) -> None:
    """ValueError in one line if a layer would give a sparse gradient, which has no place in a bucket."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise ValueError(f"{name or 'the model'}: sparse=True gives sparse gradients; give sparse=False")


def _momentum(optimizer: Optimizer) -> str | None:
    """The momentum that an optimizer applies, or the first moment of one like Adam."""
    for group in optimizer.param_groups:
        if group.get("momentum"):
            return f"momentum={group['momentum']}"
        if group.get("betas", (0.0,))[0]:
            return f"betas={tuple(group['betas'])}"
    return None


def _float32(parameters: Iterable[Parameter]) -> list[Parameter]:
    found = list(parameters)
    kinds = {f"{p.dtype} on {p.device}" for p in found}
    if len(kinds) != 1 or found[0].dtype != torch.float32:
        raise ValueError(f"parameters must all be float32 on one device; here are {', '.join(sorted(kinds)) or 'none'}")
    return found


def _named(identity: dict[str, Any]) -> str:
    place = f"rank {identity['rank']} of {identity['workers']}"
    return f"{identity['method']}, {place}, buckets of {identity['buckets']} entries"


def _copied(value, device: torch.device):
    if isinstance(value, dict):
        return {key: _copied(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(part, device) for part in value)
    return value.to(device, copy=True) if isinstance(value, Tensor) else value
