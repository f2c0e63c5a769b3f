"""Local steps in a user's training script: workers train independently, and exchange the changes of their weights."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dlgs_bench import exchange
from dlgs_bench.comm import Communicator
from dlgs_bench.comm.local import Local, _Meeting
from dlgs_bench.comm.torch_dist_engine import TorchDist
from dlgs_bench.exchange import StepContext
from dlgs_bench.exchange.driver import LocalExchange
from dlgs_bench.exchange.flat import FlatGradients
from dlgs_bench.exchange.plugin import about
from dlgs_bench.exchange.transport import transport
from dlgs_bench.hooks.hook import checked_method, copied, plain_context, refuse_other_state, usable
from dlgs_bench.hooks.optimizers import listed_optimizers
from dlgs_bench.topology import ALL_GATHER


class LocalSteps:
    """Combines the weights of ``model`` every ``local_steps`` steps by ``method``, such as "diloco" or "sparseloco":

        with LocalSteps(model, optimizer, "diloco", local_steps=30) as sync:
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss_of(model(inputs), targets).backward()
                optimizer.step()
                sync.step()

    ``model``: a plain module, without DistributedDataParallel. ``optimizer``: the inner optimizer of each worker, or a
    list. ``group``: the processes that take part, all unless given; without a process group there is one worker.
    ``steps``: calls of ``step`` so far.

    Construction gives every worker the weights and buffers of rank 0. Afterwards the model's buffers, such as
    BatchNorm's statistics, are never exchanged. Shared weights, outer momentum and residuals are float32. ValueError in
    one line for unsupported arguments.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], method: str,
        *, group: dist.ProcessGroup | None = None, **options: Any,
    ):  # fmt: skip
        if not isinstance(model, nn.Module) or isinstance(model, nn.parallel.DistributedDataParallel):
            kind = type(model).__qualname__
            raise ValueError(f"model: {kind} is not a plain torch.nn.Module; give the model without a wrapper")
        made = checked_method(method, options)
        if not isinstance(made, exchange.LocalSteps):
            raise ValueError(
                f"{method} exchanges gradients and has no local steps; give diloco or sparseloco, or a hook"
            )
        self.name, self.method, self.steps = method, made, 0
        self._optimizers = listed_optimizers(optimizer)
        parameters = usable({name: p for name, p in model.named_parameters() if p.requires_grad})
        self._flat = FlatGradients(parameters, torch.float32)
        self._comm = _communicator(parameters[0].device, group)
        with torch.no_grad():
            if self._comm.world_size > 1:
                for tensor in (*model.parameters(), *model.buffers()):
                    self._comm.broadcast(tensor)
        self._weights = torch.empty_like(self._flat.gradients)
        self._pairs = [
            (parameter, self._weights.as_strided(view.shape, view.stride(), view.storage_offset()))
            for parameter, view in self._flat.views
        ]
        groups = [(0, len(self._flat.sizes))]
        buckets, requests = self._flat.buckets(groups), transport(ALL_GATHER, self._comm)
        self._exchange = LocalExchange(
            self.method, groups, buckets, requests, lambda label: nullcontext(), self._weights
        )
        self._read()
        self._begin()  # stores the shared weights
        self._handles = [one.register_step_pre_hook(self._check_start) for one in self._optimizers]

    def __enter__(self) -> "LocalSteps":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self) -> None:
        """Count a step of the optimizer. Every ``local_steps`` steps, exchange and continue from shared weights."""
        self.steps += 1
        if not self.method.exchanges_at(self.steps):
            return
        with plain_context(self._comm.device):
            self._read()
            self._begin()
            self._exchange.updated()
            for parameter, view in self._pairs:
                parameter.copy_(view)
            self._begin()

    def _check_start(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        """Check the first step: warn if the state was not loaded, and refuse weights that have changed."""
        for handle in self._handles:
            handle.remove()
        if self.steps:
            return
        if optimizer.state:
            warnings.warn(
                f"{self.name}: the optimizer has made steps, but the outer state is new; after a resume, call "
                "load_state_dict of LocalSteps on every rank",
                stacklevel=2,
            )
        before = self._weights.clone()
        self._read()
        if not torch.equal(before, self._weights):
            raise ValueError(
                "model: its weights have changed since LocalSteps was made; load weights before that, or load the "
                "state of LocalSteps too"
            )

    def close(self) -> None:
        """Release the process group and the thread. No exchange is possible afterwards."""
        self._comm._calls.close()
        if isinstance(self._comm, TorchDist) and self._comm._group is not None:
            dist.destroy_process_group(self._comm._group)
            self._comm._group = None

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, together with the model and the optimizer. It differs between workers.

        Tensors are not copied.
        """
        return {"of": self._identity, "step": self.steps, "method": self.method.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, which is copied; ValueError in one line if the method or the buckets differ."""
        refuse_other_state(state["of"], self._identity)
        self.method.load_state_dict(copied(state["method"], self._comm.device))
        self.steps = state["step"]

    @property
    def _identity(self) -> dict[str, Any]:
        worker = {"rank": self._comm.rank, "workers": self._comm.world_size}
        options = {name: getattr(self.method, name) for name in about(self.name)["fields"]}
        return {"method": self.name, "options": options, **worker, "buckets": [b.size for b in self._exchange.buckets]}

    def _begin(self) -> None:
        lr = float(self._optimizers[0].param_groups[0]["lr"])
        self._exchange.begin(StepContext(self.steps, self._comm.rank, self._comm.world_size, lr))

    def _read(self) -> None:
        """Copy the model's weights into the flat tensor."""
        with torch.no_grad():
            for parameter, view in self._pairs:
                view.copy_(parameter)


def _communicator(device: torch.device, group: dist.ProcessGroup | None) -> Communicator:
    """A communicator with its own process group, so that calls of the script on its group cannot interfere."""
    if not dist.is_available() or not dist.is_initialized():
        return Local(0, _Meeting(1))
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    some = len(ranks) < dist.get_world_size()
    own = dist.new_group(ranks, backend=dist.get_backend_config(group), use_local_synchronization=some)
    return TorchDist(device, own)
