"""Exchanges of hooks, which survive gradients that are not finite."""

from collections.abc import Generator
from copy import copy as shallow
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dlgs_bench.buckets import Plan
from dlgs_bench.exchange import Bucket, Max, Method, StepContext
from dlgs_bench.exchange.async_device import DeferredScalar, is_async
from dlgs_bench.exchange.driver import Clock, OpenBucket, WorkerExchange
from dlgs_bench.exchange.transport import Transport

# The sum of larger entries overflows within a method, over workers or over the steps that a residual lasts. In a
# comparison, torch rounds it to the tensor's dtype. In float16 it is infinity, so entries must be below it.
LARGEST = 1e36


class FiniteExchange(WorkerExchange):
    """An exchange in which a step fails on all workers if a gradient is not finite on any worker, or above LARGEST.

    The method gets zeros instead of such a gradient. The maximum of the workers' flags is exchanged after the last
    bucket, as an additional bucket without layers. The first flag is 1 if a gradient is not finite, and -1 otherwise.
    Horovod sends 0 for a worker in hvd.join, and ``restore`` then sets ``incomplete``. The other flags, one for each
    layer, are 1 if this worker has a gradient of the layer, and -1 otherwise.

    ``used``: the layers of which this worker has a gradient in this step. The caller adds a layer before ``ready``.

    After a failed step the aggregates are NaN, and the method has the state from before the step, which is copied when
    a step begins. The flag of a GPU is read when the next step begins, so that the host never waits.
    """

    def __init__(self, method: Method, groups: Plan, buckets: list[Bucket], transport: Transport, clock: Clock) -> None:
        layers = groups[-1][1]
        self._flags = buckets[0].gradient.new_zeros(1 + layers)
        self._flag = self._flags[:1]
        self.used: set[int] = set()
        super().__init__(
            method, [*groups, (layers, layers)], [*buckets, Bucket(len(buckets), self._flags)], transport, clock
        )
        self.before: dict[str, Any] = {}  # the method's state before the step
        self._failed: DeferredScalar | None = None
        self.incomplete = False

    def warm_start(self) -> None:
        for bucket in self.buckets[:-1]:  # the last bucket has the flags
            self.method.warm_start(bucket, self._workers)

    def begin(self, context: StepContext) -> None:
        self.before = _copied(self.method.state_dict(), self.before)
        self._flags.fill_(-1)
        self.used.clear()
        super().begin(context)

    def unused(self) -> set[int]:
        """The layers of which no worker has a gradient in this step. Call it after ``finish``."""
        if self._uses_all:  # usually, and the host need not wait for a GPU
            return set()
        return {layer for layer, flag in enumerate(self._flags[1:].tolist()) if flag < 0}

    @property
    def _uses_all(self) -> bool:
        """Whether this worker has a gradient of every layer."""
        return len(self.used) == len(self._flags) - 1

    def conclude(self, delivered: list[Tensor], shards: dist.ProcessGroup | None = None) -> None:
        """Replace ``delivered``, the gradients that the script gets, by NaN if the step failed.

        ``shards``: the ranks that hold the other shards of these gradients, whose step fails too.
        """
        for tensor in delivered:
            self._note(tensor)
        if shards is not None:
            dist.all_reduce(self._flag, dist.ReduceOp.MAX, shards)
        if is_async(self._flag):
            for tensor in delivered:
                tensor.masked_fill_(self._flag[0] > 0, torch.nan)  # a mask without dimensions fits every tensor
        elif self._flag > 0:
            for tensor in delivered:
                tensor.fill_(torch.nan)
        self._failed = DeferredScalar(self._flag.clone())

    def abstain(self, shards: dist.ProcessGroup) -> None:
        """Take part in ``conclude`` of the other ``shards`` in a step that this rank does not make."""
        dist.all_reduce(self._flag.new_full((1,), -1), dist.ReduceOp.MAX, shards)

    def restore(self) -> bool:
        """Whether the last step failed. If it did, restore the method's state from before this step."""
        failed, self._failed = self._failed, None
        flag = -1 if failed is None else failed.read()
        self.incomplete = flag == 0
        if flag <= 0:
            return False
        self.method.load_state_dict(self.before)
        self.before = {}  # the method holds these tensors now
        return True

    def _begin_bucket(self, bucket: Bucket) -> None:
        if bucket.gradient is self._flags:
            if self._uses_all:  # usually, and no indices need be copied to a GPU
                self._flags[1:].fill_(1)
            elif self.used:
                self._flags[1:][sorted(self.used)] = 1
            agreement = _largest(self._flags)
            self._open.append(OpenBucket(agreement, next(agreement), bucket, num_requests=1))
            return
        if self._note(bucket.gradient):
            bucket.gradient.zero_()
        super()._begin_bucket(bucket)

    def _note(self, tensor: Tensor) -> bool:
        """Set the flag if ``tensor`` is not finite, and return whether the caller must clear the tensor."""
        if is_async(tensor):
            finite = tensor.abs() < LARGEST
            self._flag.copy_(torch.where(finite.all(), self._flag, 1))
            tensor.masked_fill_(~finite, 0)
            return False
        if tensor.norm().isfinite() or (tensor.abs() < LARGEST).all():  # a norm is fast, but can overflow
            return False
        self._flag.fill_(1)
        return True


def _largest(flags: Tensor) -> Generator[Max, Tensor, Tensor]:
    return (yield Max(flags))


def _copied(state: Any, into: Any) -> Any:
    """A copy of nested ``state``. It reuses the tensors of ``into`` that have the same shape, dtype and device."""
    targets: list[Tensor] = []
    sources: list[Tensor] = []

    def copy(value: Any, buffer: Any) -> Any:
        if isinstance(value, dict):
            buffers = buffer if isinstance(buffer, dict) else {}
            same_kind = shallow(value)  # a defaultdict, for example
            same_kind.update((key, copy(part, buffers.get(key))) for key, part in value.items())
            return same_kind
        if isinstance(value, list | tuple):
            same_length = isinstance(buffer, list | tuple) and len(buffer) == len(value)
            parts = buffer if same_length else [None] * len(value)
            return type(value)(map(copy, value, parts))
        if not isinstance(value, Tensor):
            return deepcopy(value)
        fits = isinstance(buffer, Tensor) and (buffer.shape, buffer.dtype, buffer.device) == (
            value.shape, value.dtype, value.device,
        )  # fmt: skip
        target = buffer if fits else torch.empty_like(value)
        targets.append(target)
        sources.append(value)
        return target

    copied = copy(state, into)
    if targets:
        torch._foreach_copy_(targets, sources)
    return copied
