"""A method as the communication hook of DistributedDataParallel (Li et al., PyTorch Distributed, VLDB 2020)."""

import math
import weakref
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dlgs_bench.buckets import fill, filled_by
from dlgs_bench.exchange import Method
from dlgs_bench.hooks.groups import own_communicator
from dlgs_bench.hooks.hook import Hook, is_not_zero, plain_context, refuse_second_hook, refuse_sparse, weakly
from dlgs_bench.hooks.optimizers import has_closure
from dlgs_bench.hooks.wrappers import before_forward, exchanged_by, refuse_inner, refuse_outer

FOREIGN = -1  # in place of a layer: a parameter in DDP's buckets that was frozen when the hook was made


class DDPHook(Hook):
    """Registers ``method``, with its parameters ``options``, as the hook of ``model``:

        hook = DDPHook(model, optimizer, "topk", ratio=0.01)

    Buckets are described in ``Hook``. They end where DDP's buckets will probably end. For a method that merges layers
    by size, they are DDP's buckets, divided further to ``bucket_cap_mb`` MiB. DDP assigns its buckets again after the
    first iteration; the state of the method stays valid.

    An ``elementwise`` method uses the order of entries in DDP's buckets. With three or more workers, an engine may then
    add some entries in another order. In ``no_sync`` nothing is exchanged, and the next pass exchanges the accumulated
    gradient.

    ``method``: the name of a file of ``methods/``, or a class. ``optimizer``: the model's optimizer, or a list.
    ``scaler``: the GradScaler that scales the loss, if there is one. All processes of the model's group construct the
    hook. ValueError in one line for unsupported arguments.
    """

    def __init__(
        self, model: DistributedDataParallel, optimizer: Optimizer | Sequence[Optimizer], method: str | type[Method],
        *, bucket_cap_mb: float = math.inf, scaler: torch.amp.GradScaler | None = None, **options: Any,
    ) -> None:  # fmt: skip
        model = _checked(getattr(model, "_orig_mod", model))  # what torch.compile has wrapped
        parameters = exchanged_by(model)
        refuse_second_hook(parameters)
        registered = _registered(model)
        ends = _ends([p.numel() * p.element_size() for p in parameters.values() if p.numel()][::-1], model)
        comm = own_communicator(model.process_group, next(model.module.parameters()).device)
        super().__init__(model.module, parameters, optimizer, comm, method, options, bucket_cap_mb, scaler, ends)
        # The model keeps the hook through C++, where the garbage collector sees no cycle.
        self._ddp = weakref.ref(model)
        self._layers = {p: layer for layer, (p, _) in enumerate(self._flat.views)}
        ignored = model.parameters_to_ignore
        self._exchanged |= {id(p) for name, p in model.module.named_parameters() if name in ignored}
        self._leaves_out_layers = model.find_unused_parameters or model.static_graph
        self._aggregates: list[tuple[Tensor, Tensor]] = []  # (parameter, its aggregate) of a pass
        # layer that a pass does not use -> a copy of its gradient, if the gradient is a view of DDP's bucket
        self._left_out: dict[Tensor, Tensor] = {}
        self._arrived: set[Tensor] = set()  # layers that got a gradient since the last exchange
        self._applied: set[Tensor] = set()  # layers whose gradient an optimizer has applied
        self._promised: list[tuple[torch.futures.Future[Tensor], Tensor, list[tuple[Tensor, Tensor]]]] = []
        self._adds_to_aggregates = self._delivered = self._called = False
        self._checked_pass = -1  # autograd's number of the last pass that was checked
        self._follows = False  # whether the pass before has delivered aggregates
        self._local = False  # whether the last forward pass was in no_sync
        self._missed: tuple[Tensor, Tensor | None] | None = None  # a layer, its gradient of a pass without exchange
        self._kinds = {p: (p.dtype, p.device) for p in self._layers}
        for p in self._layers:  # a pass need not use all of them
            if self.method.owns_momentum:
                note = torch.compiler.disable(partial(weakly(self._note_accumulation), p))
                self._handles.append(p.register_hook(note))
            self._handles.append(p.register_post_accumulate_grad_hook(weakly(self._check_pass)))
        self._handles.append(before_forward(model, weakly(self._check_forward)))
        self.exchange_bucket = weakly(self._hook)  # torch does not compile it
        registered.hook = self

    def _hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Exchange a bucket of DDP. DDP calls it while backward runs, in the same order on all workers.

        The call for the last bucket waits for all exchanges, since backward has then ended. A bucket of the method that
        lies within a bucket of DDP is exchanged in place. For any other bucket, each layer is copied there and back.
        """
        with plain_context(self._comm.device):
            return self._exchanged_bucket(bucket)

    def _exchanged_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self._refuse_smaller_mean()
            self._begin()
            self._promised.clear()
            self._aggregates.clear()
            self._left_out.clear()
        buffer, parameters = bucket.buffer().detach(), bucket.parameters()
        starts = list(accumulate((p.numel() for p in parameters), initial=0))
        layers = [self._layers.get(p, FOREIGN) for p in parameters]
        position = {layer: n for n, layer in enumerate(layers) if layer != FOREIGN}
        used = {n: self._prepare(parameters[n], buffer[starts[n] : starts[n + 1]]) for n in position.values()}
        copies: list[tuple[Tensor, Tensor]] = []
        for index in sorted({self._exchange.bucket_of[layer] for layer in position}):
            copies += self._take(index, buffer, layers, starts, position)
        for layer, n in position.items():
            self._ready(layer, used[n])
            first = starts[n] + int(buffer.storage_offset())
            own = buffer.as_strided(parameters[n].shape, self._flat.views[layer][1].stride(), first)
            self._aggregates.append((parameters[n], own))
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._promised.append((future, buffer, copies))
        if bucket.is_last():
            self._finish()
            for _, _, copies in self._promised:
                for there, own in copies:
                    there.copy_(own)
            self._conclude([buffer for _, buffer, _ in self._promised])
            if self._leaves_out_layers or self._held:
                self._deliver()
            self._arrived.clear()
            self._delivered, self._missed = True, None
            for future, buffer, _ in self._promised:
                future.set_result(buffer)
        return self._promised[-1][0]

    def _check_forward(self) -> None:
        """ValueError in one line if the gradients of the forward pass that begins would not be exchanged once."""
        refuse_outer(self._layers)
        self._called = True
        if torch.is_grad_enabled():
            self._local = not self._synchronises()
        frozen = [p for p in self._layers if not p.requires_grad]
        # If all are frozen, as a discriminator is while its generator trains, nothing is exchanged.
        if frozen and len(frozen) < len(self._layers) and torch.is_grad_enabled() and not self._leaves_out_layers:
            raise ValueError(
                f"{self._name_of(frozen[0])}: it was frozen after the model was wrapped, so DistributedDataParallel "
                "would wait for its gradient; freeze it before, or give find_unused_parameters=True"
            )

    def _check_step(self, optimizer: Optimizer, positional: tuple, named: dict) -> None:
        super()._check_step(optimizer, positional, named)
        self._applied |= {p for group in optimizer.param_groups for p in group["params"] if p in self._layers}
        if has_closure(positional, named):  # its passes come later
            return
        if not (self._begun or self._called) and any(is_not_zero(p.grad) for p in self._layers):
            raise ValueError(
                f"model: the first gradients come from passes outside the model of the hook, so {self.name} has not "
                "exchanged them; call the DistributedDataParallel that the hook was given"
            )
        if self._missed is None:
            return
        missed, gradient = self._missed
        if missed.grad is gradient and is_not_zero(gradient):
            if self._ddp() is None:
                raise ValueError(
                    f"model: the DistributedDataParallel that {self.name} was given no longer exists, so no pass is "
                    "exchanged by it; call close of its hook, and give another model a hook of its own"
                )
            raise ValueError(
                "backward: its gradients were not exchanged, since DistributedDataParallel exchanges only the first "
                f"backward after a forward of the model that {self.name} was given; call this model before each "
                "backward, or add up the losses"
            )

    def _synchronises(self) -> bool:
        """Whether the model is outside no_sync."""
        model: Any = self._ddp()
        return model is not None and model.require_backward_grad_sync

    def _note_accumulation(self, parameter: Tensor, gradient: Tensor) -> None:
        """Note whether autograd is about to add a gradient to the aggregate of the pass before."""
        self._drop_idle(parameter)
        if torch._C._current_graph_task_id() != self._checked_pass:  # the first gradient of a pass
            self._follows = self._delivered
        self._adds_to_aggregates = self._follows and is_not_zero(parameter.grad)

    def _drop_idle(self, parameter: Any) -> None:
        """Let autograd return the discarded updates at the end of the pass."""
        if parameter in self._idle and not self._dropped:
            torch.autograd.Variable._execution_engine.queue_callback(weakly(self._return_dropped))
        super()._drop_idle(parameter)

    def _check_pass(self, parameter: Tensor) -> None:
        """ValueError in one line if the pass cannot be exchanged."""
        self._arrived.add(parameter)
        self._applied.discard(parameter)
        self._dropped.pop(parameter, None)
        if self._adds_to_aggregates:
            raise ValueError(self._accumulates(parameter))
        if (kind := (parameter.dtype, parameter.device)) != self._kinds[parameter]:
            now, before = ("{} on {}".format(*one) for one in (kind, self._kinds[parameter]))
            raise ValueError(
                f"{self._name_of(parameter)}: {now} is not {before}, as when the model was wrapped, so "
                "DistributedDataParallel would not exchange its gradient; convert and move the model first"
            )
        if (number := torch._C._current_graph_task_id()) == self._checked_pass:
            return
        self._checked_pass = number
        if torch.is_grad_enabled():
            raise ValueError(
                "backward: create_graph=True is not possible under DistributedDataParallel; take inner gradients by "
                "torch.autograd.grad, and call backward without it"
            )
        self._delivered = False
        if self._ddp() is None or (self._synchronises() and not self._local):
            self._missed = parameter, parameter.grad  # until the pass is exchanged

    def _refuse_smaller_mean(self) -> None:
        """ValueError in one line if ``join`` is to divide by the workers that still have inputs."""
        model: Any = self._ddp()
        if model is not None and model._join_config.enable and not model._divide_by_initial_world_size:
            raise ValueError(
                "join: divide_by_initial_world_size=False is not possible with a hook, which divides by the number of "
                "all workers; leave it out"
            )

    def _prepare(self, parameter: Tensor, gradient: Tensor) -> bool:
        """Whether a gradient of a layer takes part in the exchange. ``gradient``: what DDP exchanges, shape (n,).

        If a pass does not use a layer, DDP exchanges what earlier passes have left in its gradient. A gradient that was
        applied is replaced by zeros, and so is the gradient of a frozen layer. Methods that apply momentum get zeros in
        any case: what is left is an update of theirs.
        """
        if parameter in self._arrived:
            if parameter.requires_grad:
                return True
            if is_not_zero(parameter.grad):
                raise ValueError(
                    f"{self._name_of(parameter)}: it was frozen before its gradient was exchanged, so the gradient "
                    "would stay on one worker; freeze it after a step of the optimizer"
                )
        if parameter.grad is not None and _same_memory(parameter.grad, gradient):
            self._left_out[parameter] = parameter.grad.clone()
        applied = parameter in self._applied and not self.method.uncompressed
        if applied or self.method.owns_momentum or not parameter.requires_grad:
            gradient.zero_()
            return False
        return parameter.grad is not None and bool(gradient.any())

    def _deliver(self) -> None:
        """Deliver the aggregates of layers that this worker has not used. DDP writes those that another worker uses."""
        unused = self._unused()
        backward = torch._C._current_graph_task_id() >= 0  # False in a pass that join adds
        for p, aggregate in self._aggregates:
            left_out = self._layers[p] in unused
            if not p.requires_grad or (left_out and not self.method.owns_momentum):
                self._hold(p, aggregate)
                before = self._left_out.get(p, p.grad)
                # DDP writes it if the graph is static.
                aggregate.zero_() if before is None else aggregate.copy_(before)
                continue
            earlier = None if p in self._applied or p in self._idle else self._left_out.get(p, p.grad)
            self._note_idle(p, left_out, earlier)
            if left_out and earlier is not None:
                aggregate.add_(earlier)
            self._applied.discard(p)
            self._deliver_held(p, aggregate)
            if backward and p not in self._arrived and p.grad is not None:
                p.grad.copy_(aggregate)
            elif backward and left_out and aggregate.any():
                p.grad = aggregate.clone()

    def _take(
        self, index: int, buffer: Tensor, layers: list[int], starts: list[int], position: dict[int, int]
    ) -> list[tuple[Tensor, Tensor]]:
        """Read the layers of the method's bucket ``index`` from a bucket of DDP.

        Return (view of DDP's buffer, view of the bucket) for each layer that was copied. ``layers``: the layers in
        ``buffer``, in their order, or ``FOREIGN``. ``starts``: the offset of each. ``position``: layer -> its index in
        ``layers``. DDP orders layers by the arrival of gradients, which can differ from the order of the buckets.
        Example: the bias of a norm can arrive after its weight.
        """
        group = self._exchange.groups[index]
        here = sorted(position[layer] for layer in range(*group) if layer in position)
        contiguous = layers[here[0] : here[-1] + 1]
        fits = buffer.dtype == self._flat.gradients.dtype
        if fits and (sorted(contiguous) if self.method.elementwise else contiguous) == list(range(*group)):
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


def _checked(model: nn.Module) -> DistributedDataParallel:
    """The model; ValueError in one line if DDP is missing, or has a setting that a hook does not support."""
    if not isinstance(model, DistributedDataParallel):
        kind = type(model).__qualname__
        raise ValueError(f"model: {kind} is not a DistributedDataParallel; wrap the model first")
    if model._use_python_reducer:
        raise ValueError(
            "torch._dynamo.config.optimize_ddp: python_reducer is not possible with a hook, because it calls the "
            "hook for single gradients; use ddp_optimizer, and no compiled autograd"
        )
    if model.skip_all_reduce_unused_params:
        raise ValueError(
            "model: skip_all_reduce_unused_params=True is not possible with a hook, which sends what unused "
            "parameters have left to send; leave it out"
        )
    if model._delay_all_reduce_params:
        raise ValueError(
            "model: delay_all_reduce_named_params is not possible with a hook, because torch does not wait for "
            "their all-reduce, so workers would drift apart; leave it out"
        )
    refuse_sparse(model.module)
    parameters = exchanged_by(model)
    refuse_inner(model.module, parameters.values())
    wrapped = {id(p) for bucket in model.reducer._get_zeros_like_grad_buckets() for p in bucket.parameters()}
    trained = set(map(id, parameters.values()))
    leaves_out = model.find_unused_parameters or model.static_graph
    changed = trained - wrapped if leaves_out else trained ^ wrapped
    if changed:
        names = {id(p): name for name, p in model.module.named_parameters()}
        if wrapped - names.keys():
            raise ValueError(
                "model: its parameters have been removed or replaced since it was wrapped, which "
                "DistributedDataParallel does not notice; wrap the model after that"
            )
        first = next(name for number, name in names.items() if number in changed)
        raise ValueError(
            f"{first}: it was frozen or unfrozen after the model was wrapped, which DistributedDataParallel does not "
            "notice; freeze and unfreeze layers before wrapping the model"
        )
    return model


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class _Registered:
    """The object that DistributedDataParallel keeps of its hook. A copy of the model has no hook."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.hook: DDPHook | None = None

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if self.hook is None or self.hook.closed:
            self.hook = None
            return allreduce_hook(self.group, bucket)
        return self.hook.exchange_bucket(bucket)

    def __reduce__(self) -> tuple:
        return _Registered, ()


def _registered(model: DistributedDataParallel) -> _Registered:
    """The slot for the hook of ``model``, made in the first call; ValueError in one line if it holds an open hook."""
    for _, state in model._comm_hooks:
        if isinstance(state, _Registered) and state.group is not None:
            if state.hook is not None and not state.hook.closed:
                raise ValueError(f"model: it has a hook already, {state.hook.name}; call close of that hook first")
            return state
    made = _Registered(model.process_group)
    try:
        model.register_comm_hook(made, _Registered.exchange)
    except RuntimeError:
        model._comm_hooks.pop()
        raise ValueError("model: it has another communication hook; wrap its module again, without that hook") from None
    return made


def _ends(lengths: Sequence[int], model: DistributedDataParallel) -> list[int]:
    """The layers before which DDP's buckets will end, if gradients arrive in the order of layers.

    If DDP assigns buckets differently, some of the method's buckets cross the ends of DDP's buckets, and are copied.
    ``lengths``: of layers, in bytes.
    """
    return [stop for _, stop in fill(lengths, *filled_by(model))][:-1]
