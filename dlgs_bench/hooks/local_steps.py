"""Local steps in a user's training script: workers train independently, and exchange the changes of their weights."""

import os
import warnings
import weakref
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dlgs_bench import exchange
from dlgs_bench.buckets import split_evenly
from dlgs_bench.comm import Communicator, broadcast_all
from dlgs_bench.comm.local import single
from dlgs_bench.comm.torch_dist_engine import TorchDist
from dlgs_bench.exchange import Method, StepContext
from dlgs_bench.exchange.driver import LocalExchange
from dlgs_bench.exchange.flat_gradients import FlatGradients
from dlgs_bench.exchange.transport import transport
from dlgs_bench.hooks.groups import agreement, own_communicator, refuse_destroyed
from dlgs_bench.hooks.hook import checked_method, plain_context, released_with, still, usable, weakly
from dlgs_bench.hooks.optimizers import listed_optimizers, rate_of, refuse_stranger
from dlgs_bench.hooks.states import arguments_of, identity_of, loaded_state, saved_state
from dlgs_bench.hooks.wrappers import before_forward, refuse_inner, refuse_outer
from dlgs_bench.topology import ALL_GATHER

_OPEN: "weakref.WeakSet[LocalSteps]" = weakref.WeakSet()
ROUNDING = "rounding of 16-bit weights"  # its key in a saved state


def has_local_steps(parameters: Iterable[Tensor]) -> bool:
    """Whether a ``LocalSteps`` that is not closed exchanges one of these parameters."""
    ids = set(map(id, parameters))
    return bool(still(lambda: [None for sync in _OPEN if sync._finalizer.alive and sync._parameter_ids & ids]))


class LocalSteps:
    """Combines the weights of ``model`` every ``local_steps`` steps by ``method``, such as "diloco" or "sparseloco":

        with LocalSteps(model, optimizer, "diloco", local_steps=30) as sync:
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss_of(model(inputs), targets).backward()
                optimizer.step()
                sync.step()

    ``model``: a plain module, without DistributedDataParallel. ``optimizer``: the inner optimizer of each worker, or a
    list. ``method``: the name of a file of ``methods/``, or a class. ``group``: the processes that take part, all
    unless given; without a process group there is one worker. ``steps``: calls of ``step`` so far.

    Construction gives every worker the weights and buffers of rank 0. Afterwards the model's buffers, such as
    BatchNorm's statistics, are never exchanged. Shared weights, outer momentum and residuals are float32. ValueError in
    one line for unsupported arguments.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], method: str | type[Method],
        *, group: dist.ProcessGroup | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module) or isinstance(model, nn.parallel.DistributedDataParallel):
            kind = type(model).__qualname__
            raise ValueError(f"model: {kind} is not a plain torch.nn.Module; give the model without a wrapper")
        self._comm = _communicator(next(model.parameters(), torch.empty(0)).device, group)
        self._handles: list[RemovableHandle] = []
        self._finalizer = released_with(self, self._comm, self._handles)
        with agreement(self._comm, "give every worker the same arguments") as same:
            self.name, made = checked_method(method, options)
            if not isinstance(made, exchange.LocalSteps):
                raise ValueError(
                    f"method: {self.name} exchanges gradients and has no local steps; give diloco or sparseloco, or "
                    "use dlgs_bench.hooks.ddp.DDPHook"
                )
            self.method, self.steps = made, 0
            self._optimizers = listed_optimizers(optimizer)
            for one in self._optimizers:
                refuse_stranger(one, model)
            parameters = usable({name: p for name, p in model.named_parameters() if p.requires_grad})
            refuse_inner(model, parameters, among=self._ranks)
            self._flat = FlatGradients(parameters, torch.float32)
            groups = split_evenly(self._flat.sizes, made.fragments)
            same |= arguments_of(self.name, made) | {"parameters": self._flat.sizes}
        self._lost = self._agreed = self._started = False
        self._replaced = self._take_weights(parameters, model)
        self._model, self._parameter_ids = model, {id(parameter) for parameter in parameters}
        self._weights = torch.empty_like(self._flat.gradients)
        self._pairs = self._views_in(self._weights)
        # 16 bits round the shared weights. What they cut off is not a change of this worker's weights.
        rounds = any(parameter.dtype != torch.float32 for parameter in parameters)
        self._rounding = torch.zeros_like(self._weights) if rounds else None
        buckets, requests = self._flat.buckets(groups), transport(ALL_GATHER, self._comm)
        self._exchange = LocalExchange(
            self.method, groups, buckets, requests, lambda label: nullcontext(), self._weights
        )
        self._read()
        self._begin()  # stores the shared weights
        self._counted = weakly(self._count)  # torch does not compile it
        self._handles += [one.register_step_pre_hook(weakly(self._check_start)) for one in self._optimizers]
        self._handles.append(before_forward(model, weakly(self._check_forward)))
        _OPEN.add(self)

    def _take_weights(self, parameters: list[nn.Parameter], model: nn.Module) -> bool:
        """Copy the weights of rank 0. Returns whether this worker had other weights."""
        if self._comm.world_size == 1:
            return False
        own = [p.detach().clone() for p in parameters]
        broadcast_all(self._comm, [*model.parameters(), *model.buffers()])
        return not all(map(torch.equal, own, parameters))

    def _views_in(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each parameter with its part of ``flat``, as it is laid out in the buckets."""
        return [(p, flat.as_strided(view.shape, view.stride(), view.storage_offset())) for p, view in self._flat.views]

    def __enter__(self) -> "LocalSteps":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        return type(None), ()  # a copy of a module that holds its LocalSteps has no LocalSteps

    def step(self) -> None:
        """Count a step of the optimizer. If the method acts at this step, exchange or adopt shared weights."""
        self._counted()

    def _count(self) -> None:
        if not self._finalizer.alive:
            raise ValueError(
                f"LocalSteps was closed, so {self.name} exchanges nothing; call step within the with block, or make "
                "LocalSteps again"
            )
        if not self._agreed:
            self._refuse_lost()
        self.steps += 1
        if not self.method.acts_at(self.steps):
            return
        self._refuse_unknown()
        refuse_destroyed(self._comm, self.name)
        with plain_context(self._comm.device):
            self._read()
            self._begin()
            self._exchange.updated()
            for parameter, view in self._pairs:
                parameter.copy_(view)
            if self._rounding is not None:
                for (parameter, view), (_, cut) in zip(self._pairs, self._views_in(self._rounding), strict=True):
                    torch.sub(view, parameter, out=cut)
            self._begin()

    def _refuse_lost(self) -> None:
        """ValueError in one line, on all workers, if a resumed worker has the weights of rank 0 and not its own."""
        with agreement(self._comm, "load the state of LocalSteps on every worker, or on none") as same:
            same["steps"] = self.steps
            if self._lost:
                raise ValueError(
                    "model: its weights were loaded before LocalSteps was made, which replaced them by those of rank "
                    "0; load them after that"
                )
        self._agreed = True

    def _refuse_unknown(self) -> None:
        """ValueError in one line if an optimizer trains a parameter whose changes are not exchanged, or if one that is
        exchanged must not change."""
        names = {id(p): name for name, p in self._model.named_parameters()}
        if frozen := [p for p, _ in self._pairs if not p.requires_grad]:
            raise ValueError(
                f"{names.get(id(frozen[0]), 'a parameter')}: it was frozen after LocalSteps was made, and {self.name} "
                "would still change it by its momentum or residual; close LocalSteps and make it again"
            )
        if not self._parameter_ids <= names.keys():
            raise ValueError(
                f"model: its parameters have been replaced since {self.name} began, as load_state_dict(assign=True) "
                "does; make LocalSteps after that"
            )
        for p in (p for one in self._optimizers for group in one.param_groups for p in group["params"]):
            if p.requires_grad and p.numel() and id(p) not in self._parameter_ids:
                name = names.get(id(p), f"a parameter of shape {tuple(p.shape)}")
                raise ValueError(
                    f"{name}: {self.name} does not exchange it, so "
                    "workers would drift apart; make LocalSteps after the parameter is in the model and unfrozen"
                )

    def _check_forward(self) -> None:
        """ValueError in one line if workers would exchange the gradients of a forward pass before the first step."""
        if not self._started:
            refuse_outer((parameter for parameter, _ in self._pairs), self._ranks)

    def _check_start(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        """Check the first step: warn if the state was not loaded, and refuse weights that have changed.

        Right after an exchange, all workers have the weights of rank 0.
        """
        if self._started:
            return
        self._started = True
        before = self._weights.clone()
        self._read()
        unchanged = torch.equal(before, self._weights)
        if self.steps:
            shared = torch.cat([self.method.shared[index] for index in sorted(self.method.shared)])
            self._lost = self._replaced and unchanged and not torch.equal(shared, self._weights)
            return
        if optimizer.state:
            warnings.warn(
                f"{self.name}: the optimizer has made steps, but the outer state is new; after a resume, call "
                "load_state_dict of LocalSteps on every rank",
                stacklevel=2,
            )
        if not unchanged:
            raise ValueError(
                "model: its weights have changed since LocalSteps was made; load weights before that, or load the "
                "state of LocalSteps too"
            )

    def close(self) -> None:
        """Release the process group and the thread; no exchange follows. The garbage collector calls it too."""
        self._finalizer()

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs, together with the model and the optimizer. It differs between workers.

        Tensors are on the CPU. If the model is on the CPU, they are the method's own tensors, not copies.
        """
        state = saved_state(self._comm, self._identity, self.steps, self.method.state_dict())
        if self._rounding is None:
            return state
        return {key: (identity, steps, kept | {ROUNDING: self._rounding.cpu()})
                for key, (identity, steps, kept) in state.items()}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any], redistribute: bool = False) -> None:
        """Continue from ``state``, which is copied; ValueError in one line if it is of another method or other buckets.

        ``redistribute``: ``state`` holds the entries of all workers, however many they were. The sum of all residuals
        is kept, and ``steps`` continues from the saved step.
        """
        self.steps, kept = loaded_state(state, self._comm, self._identity, self.method, redistribute)
        rounding = kept.pop(ROUNDING, None)  # another number of workers continues without it
        if self._rounding is not None and rounding is not None:
            self._weights.sub_(self._rounding)
            self._rounding.copy_(rounding)
            self._weights.add_(self._rounding)
        self.method.load_state_dict(kept)

    @property
    def _ranks(self) -> list[int]:
        """The workers' ranks among all processes. Other processes may share a worker's model by a wrapper."""
        return dist.get_process_group_ranks(self._comm._group) if isinstance(self._comm, TorchDist) else []

    @property
    def _identity(self) -> dict[str, Any]:
        sizes = [bucket.size for bucket in self._exchange.buckets]
        return identity_of(self.name, self.method, self._comm, sizes, self._flat.shapes)

    def _begin(self) -> None:
        context = StepContext(self.steps, self._comm.rank, self._comm.world_size, rate_of(self._optimizers))
        self._exchange.begin(context)

    def _read(self) -> None:
        """Copy the model's weights into the flat tensor."""
        with torch.no_grad():
            for parameter, view in self._pairs:
                view.copy_(parameter)
            if self._rounding is not None:
                self._weights.add_(self._rounding)


def _communicator(device: torch.device, group: dist.ProcessGroup | None) -> Communicator:
    """The communicator over ``group``, by default all processes; without a process group, over this process."""
    if not dist.is_available() or not dist.is_initialized():
        started = max(int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "HOROVOD_SIZE"))
        if started > 1:
            raise ValueError(
                f"group: {started} processes were started without a process group, so each would train alone; call "
                "torch.distributed.init_process_group first"
            )
        return single(device)
    return own_communicator(group or dist.group.WORLD, device)
