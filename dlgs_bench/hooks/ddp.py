"""A method as the communication hook of DistributedDataParallel (Li et al., PyTorch Distributed, VLDB 2020)."""

import math
import weakref
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dlgs_bench.exchange.flat import layout
from dlgs_bench.hooks.groups import own_communicator
from dlgs_bench.hooks.hook import Hook, plain_context, refuse_sparse


class DDPHook(Hook):
    """Registers ``method``, a file of ``methods/``, with its parameters ``options``, as the hook of ``model``:

        hook = DDPHook(model, optimizer, "topk", ratio=0.01)

    The method's buckets are its own (``Hook``), and end where DDP's will probably end; where it merges layers by size,
    they are DDP's, cut further to ``bucket_cap_mb`` MiB. Its state outlasts that DDP cuts its buckets anew after the
    first iteration. An ``elementwise`` method takes the entries of a bucket as DDP lays them: of three or more workers,
    an engine may then add up some in another order. In ``no_sync`` nothing is exchanged; the next pass exchanges what
    has accumulated.
    ``optimizer``: the model's, or a list of them. ``scaler``: the GradScaler that scales the loss, if there is one.
    All processes of the model's group construct it. ValueError in one line for what cannot work.
    """

    def __init__(
        self, model: DistributedDataParallel, optimizer: Optimizer | Sequence[Optimizer], method: str,
        *, bucket_cap_mb: float = math.inf, scaler: torch.amp.GradScaler | None = None, **options: Any,
    ):  # fmt: skip
        model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
        if not isinstance(model, DistributedDataParallel):
            kind = type(model).__qualname__
            raise ValueError(f"model: {kind} is not a DistributedDataParallel; wrap the model first")
        if model._use_python_reducer:
            raise ValueError(
                "torch._dynamo.config.optimize_ddp: python_reducer is not possible with a hook, which it gives single "
                "gradients; use ddp_optimizer"
            )
        refuse_sparse(model.module)
        named, ignored = model.module.named_parameters(), model.parameters_to_ignore
        parameters = {name: p for name, p in named if p.requires_grad and name not in ignored}
        ends = _ends([p.numel() * p.element_size() for p in parameters.values() if p.numel()][::-1], model)
        comm = own_communicator(model.process_group, next(model.module.parameters()).device)
        super().__init__(model.module, parameters, optimizer, comm, method, options, bucket_cap_mb, scaler, ends)
        self._ddp = weakref.ref(model)  # which keeps the hook, out of the garbage collector's sight
        self._layers = {p: layer for layer, (p, _) in enumerate(self._flat.views)}
        self._exchanged |= {id(p) for name, p in model.module.named_parameters() if name in ignored}
        self._leaves_out_layers = model.find_unused_parameters or model.static_graph
        self._aggregates: list[tuple[Tensor, Tensor]] = []  # (parameter, its aggregate) of a pass
        self._promised: list[tuple[torch.futures.Future[Tensor], Tensor, list[tuple[Tensor, Tensor]]]] = []
        model.register_comm_hook(_Registered(self, model.process_group), _Registered.exchange)
        self._handles.append(self._flat.views[0][0].register_hook(_refuse_graph))

    def _hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """DDP calls it while backward runs, bucket by bucket, in one order on all workers.

        When it does so for the last bucket, backward has ended: the exchanges are then waited for. A bucket of ours
        that lies within DDP's is exchanged where it lies; of any other, each layer is copied there and back.
        """
        with plain_context(self._comm.device):
            return self._exchanged_bucket(bucket)

    def _exchanged_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._refuse_smaller_mean()
            self._begin()
            self._promised.clear()
            self._aggregates.clear()
        buffer, layers = bucket.buffer().detach(), [self._layers[p] for p in bucket.parameters() if p in self._layers]
        starts = list(accumulate((self._flat.sizes[layer] for layer in layers), initial=0))
        place = {layer: n for n, layer in enumerate(layers)}
        copies: list[tuple[Tensor, Tensor]] = []
        for index in sorted({self._exchange.bucket_of[layer] for layer in layers}):
            copies += self._take(index, buffer, layers, starts, place)
        for layer, start in zip(layers, starts, strict=False):
            self._exchange.ready(layer)
            parameter = self._flat.views[layer][0]
            first = start + int(buffer.storage_offset())
            self._aggregates.append((parameter, buffer.as_strided(parameter.shape, layout(parameter), first)))
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._promised.append((future, buffer, copies))
        if bucket.is_last():
            self._finish()
            for _, _, copies in self._promised:
                for there, own in copies:
                    there.copy_(own)
            self._conclude([buffer for _, buffer, _ in self._promised])
            if self._leaves_out_layers and torch._C._current_graph_task_id() >= 0:  # not in a pass that join adds
                torch.autograd.Variable._execution_engine.queue_callback(self._note_grads)
            for future, buffer, _ in self._promised:
                future.set_result(buffer)
        return self._promised[-1][0]

    def _refuse_smaller_mean(self) -> None:
        """ValueError in one line if ``join`` is to divide by the workers that still have inputs."""
        model: Any = self._ddp()
        if model is not None and model._join_config.enable and not model._divide_by_initial_world_size:
            raise ValueError(
                "join: divide_by_initial_world_size=False is not possible with a hook, which divides by the number of "
                "all workers; leave it out"
            )

    def _note_grads(self) -> None:
        """DDP leaves the gradient of a layer alone that no worker used; so its residual's aggregate would be lost."""
        before = [(p.grad, None if p.grad is None else p.grad._version) for p, _ in self._aggregates]

        def hand_over() -> None:
            with torch.no_grad():
                for (p, aggregate), (grad, version) in zip(self._aggregates, before, strict=True):
                    if not p.requires_grad:
                        continue
                    if p.grad is None:
                        if aggregate.any():
                            p.grad = aggregate.clone()
                    elif p.grad is grad and p.grad._version == version:
                        p.grad.copy_(aggregate)
            self._aggregates.clear()

        torch.autograd.Variable._execution_engine.queue_callback(hand_over)

    def _take(
        self, index: int, buffer: Tensor, layers: list[int], starts: list[int], place: dict[int, int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Take what DDP's bucket holds of one of ours; (there, own) for each layer that was copied.

        ``layers``: those in ``buffer``, in their order; ``starts``: where each begins; ``place``: which it is there.
        DDP lays layers as their gradients arrive: a norm's bias, say, after its weight, where we have it before.
        """
        group = self._exchange.groups[index]
        here = sorted(place[layer] for layer in range(*group) if layer in place)
        found = layers[here[0] : here[-1] + 1]
        fits = buffer.dtype == self._flat.gradients.dtype
        if fits and (sorted(found) if self.method.elementwise else found) == list(range(*group)):
            there = buffer[starts[here[0]] : starts[here[-1] + 1]]
            self._exchange.move(index, there)
            self._put(there, there)
            for n in here:
                self._add_decay(layers[n], buffer[starts[n] : starts[n + 1]])
            return []
        self._exchange.move(index, self._flat.slice(*group))
        copies = [(buffer[starts[n] : starts[n + 1]], self._flat.slice(layers[n], layers[n] + 1)) for n in here]
        for n, (there, own) in zip(here, copies, strict=True):
            self._put(there, own)
            self._add_decay(layers[n], own)
        return copies


class _Registered:
    """What DistributedDataParallel keeps of a hook; a copy of the model keeps nothing of it."""

    def __init__(self, hook: DDPHook | None = None, group: dist.ProcessGroup | None = None):
        self._hook, self._group = hook, group

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self._hook is None or self._hook.closed:
            self._hook = None
            return allreduce_hook(self._group, bucket)
        return self._hook._hook(bucket)

    def __reduce__(self) -> tuple:
        return _Registered, ()


def _refuse_graph(gradient: Tensor) -> None:
    """ValueError in one line where DistributedDataParallel itself would fail without a reason."""
    if torch.is_grad_enabled():
        raise ValueError(
            "backward: create_graph=True is not possible under DistributedDataParallel; take inner gradients by "
            "torch.autograd.grad, and call backward without it"
        )


def _ends(lengths: Sequence[int], model: DistributedDataParallel) -> list[int]:
    """Before which layers DDP's buckets will end, if gradients arrive in our order; ``lengths``: of layers, in bytes.

    DDP closes a bucket once it is full, and the first one at 1 MiB unless it was told a size. If it decides otherwise,
    some of our buckets lie across its own, and are copied.
    """
    most = 2**20 if model.bucket_bytes_cap_default else model.bucket_bytes_cap
    ends, held = [], 0
    for layer, length in enumerate(lengths[:-1], start=1):
        held += length
        if held >= most:
            ends.append(layer)
            held, most = 0, model.bucket_bytes_cap
    return ends
