"""Drives a method over the buckets of one step, while backward runs.

All workers make the same requests in the same order, bucket by bucket, because engines pair calls by their order, and
because eq. 5 of the paper has one communication at a time. The code of a method runs on the main thread; its time is
counted as sparsification.

The exchange of a bucket is in one of three states: *waiting* (its next request is not posted yet), *in flight*, or
*resumable* (the answer has arrived). A request is posted when all requests of earlier buckets have been posted.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from dlgs_bench.buckets import Plan
from dlgs_bench.comm import Pending
from dlgs_bench.exchange.method import Bucket, Method, Request, Requests, StepContext
from dlgs_bench.exchange.transport import ParameterServerTransport, Transport
from dlgs_bench.exchange.weight_changes import LocalSteps

Clock = Callable[[str], AbstractContextManager]  # assigns the time in its context to a label


class ServerOptimizer(Protocol):
    """What a parameter server needs of an optimizer: ``step`` updates ``parameters[start:stop]``."""

    parameters: Tensor

    def step(self, gradient: Tensor, start: int, stop: int) -> None: ...


class Exchange(ABC):
    """One process's part in the exchanges of a step. It depends on the role of the process.

    ``groups``: (start, stop) ranges of layers, in the order of exchange; ``buckets``: one per group.
    ``transport``: answers the method's requests, and counts what is sent.
    """

    communications: list[tuple[int, float, float]]
    sent_entries: list[int | Tensor]

    def __init__(self, method: Method, groups: Plan, buckets: list[Bucket], transport: Transport) -> None:
        self.method, self.groups, self.buckets, self.transport = method, groups, buckets, transport

    def move(self, index: int, gradient: Tensor) -> None:
        """Use other memory for the gradient of a bucket, shape (d,), from now on."""
        self.buckets[index] = replace(self.buckets[index], gradient=gradient)

    @abstractmethod
    def begin(self, context: StepContext) -> None:
        """Prepare for a step. Call this before its first gradient is ready."""

    @abstractmethod
    def ready(self, layer: int) -> None:
        """Start what can start with the gradient of a layer. Backward calls this when the gradient is in its bucket."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all buckets are exchanged. Call this after backward."""

    def updated(self) -> None:  # noqa: B027 - most subclasses do nothing
        """Do what remains after the optimizer's step."""

    @property
    def weights_differ(self) -> bool:
        """Whether the workers' weights may differ now."""
        return False

    @abstractmethod
    def warm_start(self) -> None:
        """Set the method's state to what it would be after long training, given a gradient in the buckets."""


@dataclass
class OpenBucket:
    """A bucket whose exchange has begun. ``request`` is waiting if ``pending`` is None."""

    coroutine: Requests
    request: Request
    bucket: Bucket
    num_requests: int
    posted: int = 0
    posted_at: float = 0.0
    pending: Pending | None = None


class WorkerExchange(Exchange):
    """A worker's part: it runs the method.

    ``communications``: (bucket, posted, ended) of the last step, in seconds of the host's clock. If the engine does not
    report the end, it is the time at which this thread noticed it.
    ``sent_entries``: the entries that each bucket sent in the last step.
    ``bucket_of``: the bucket of each layer.
    """

    def __init__(self, method: Method, groups: Plan, buckets: list[Bucket], transport: Transport, clock: Clock) -> None:
        super().__init__(method, groups, buckets, transport)
        self._clock = clock
        self.bucket_of = [b for b, (i, j) in enumerate(groups) for _ in range(i, j)]
        self._label = "other" if method.uncompressed else "sparsify"

    def begin(self, context: StepContext) -> None:
        self._context = context
        self._missing = [stop - start for start, stop in self.groups]
        self._next = 0
        self._open: deque[OpenBucket] = deque()
        self.communications = []
        self.sent_entries = [0] * len(self.buckets)
        self.transport.reset()

    def warm_start(self) -> None:
        for bucket in self.buckets:
            self.method.warm_start(bucket, self._workers)

    @property
    def _workers(self) -> int:
        return self.transport.comm.world_size - self.transport.topology.servers

    def ready(self, layer: int) -> None:
        self._missing[self.bucket_of[layer]] -= 1
        while self._next < len(self.buckets) and not self._missing[self._next]:
            self._begin_bucket(self.buckets[self._next])
            self._post()
            self._next += 1
        self._advance(wait=False)

    def finish(self) -> None:
        if self._next < len(self.buckets):
            missing = self._missing[self._next]
            raise RuntimeError(f"bucket {self._next}: no gradient for {missing} layers; call ready for every layer")
        self._advance(wait=True)

    def _begin_bucket(self, bucket: Bucket) -> None:
        with self._clock(self._label):
            coroutine = self.method.exchange(bucket, self._context)
            self._open.append(
                OpenBucket(coroutine, next(coroutine), bucket, self.method.num_requests(bucket, self._context))
            )

    def _post(self) -> None:
        """Post waiting requests, but no request of a bucket before the last request of the bucket before it."""
        for item in self._open:
            if item.pending is None:
                if item.posted == item.num_requests:
                    raise self._miscounted(item, "makes more")
                item.posted_at = time.perf_counter()
                with self._clock(self._label):  # to pack a message takes the worker's time
                    item.pending = self._counting(item, self.transport.start, item.request)
                item.posted += 1
            if item.posted < item.num_requests:
                return

    def _counting(self, item: OpenBucket, call: Callable, *request: Any) -> Any:
        """Return the result of ``call``, and add the entries that it counts as sent to the bucket's."""
        before = self.transport.sent_entries
        result = call(*request)
        self.sent_entries[item.bucket.index] += self.transport.sent_entries - before
        return result

    def _advance(self, wait: bool) -> None:
        """Resume exchanges, oldest first, until one has no answer yet; with ``wait``, wait for all answers."""
        while self._open:
            head = self._open[0]
            if not head.pending.done():
                if not wait:
                    return
                with self._clock("communication"):
                    head.pending.wait()
            ended_at = head.pending.ended_at or time.perf_counter()
            self.communications.append((head.bucket.index, head.posted_at, ended_at))
            with self._clock(self._label):
                answer = self._counting(head, self.transport.finish, head.request, head.pending)
                try:
                    head.request, head.pending = head.coroutine.send(answer), None
                except StopIteration as end:
                    if head.posted < head.num_requests:
                        raise self._miscounted(head, f"makes only {head.posted}") from None
                    self._apply(end.value, head.bucket)
                    self._open.popleft()
            self._post()

    def _apply(self, aggregate: Tensor, bucket: Bucket) -> None:
        """Copy the aggregate to the bucket's gradient, which the optimizer reads."""
        target = bucket.gradient
        if aggregate is target:
            return
        if not isinstance(aggregate, Tensor) or aggregate.shape != target.shape or aggregate.dtype != target.dtype:
            got = f"{aggregate.dtype} {tuple(aggregate.shape)}" if isinstance(aggregate, Tensor) else repr(aggregate)
            expected = f"{target.dtype} {tuple(target.shape)}"
            raise TypeError(f"{type(self.method).__name__} returned {got} for bucket {bucket.index}, not {expected}")
        target.copy_(aggregate)

    def _miscounted(self, item: OpenBucket, makes: str) -> RuntimeError:
        name, bucket = type(self.method).__name__, item.bucket.index
        returns = f"{name}.num_requests returns {item.num_requests} for bucket {bucket}"
        return RuntimeError(f"{returns}, but the exchange {makes}; return the exact number")


class LocalExchange(WorkerExchange):
    """A worker's part with local steps: workers exchange changes of weights, after the optimizer's step.

    ``parameters``: shape (d,), the model's weights; buckets split them as they split the gradient.
    """

    method: LocalSteps

    def __init__(
        self,
        method: LocalSteps,
        groups: Plan,
        buckets: list[Bucket],
        transport: Transport,
        clock: Clock,
        parameters: Tensor,
    ) -> None:
        super().__init__(method, groups, buckets, transport, clock)
        self._weights = parameters.split([bucket.size for bucket in buckets])

    def begin(self, context: StepContext) -> None:
        super().begin(context)
        for bucket, weights in zip(self.buckets, self._weights, strict=True):
            if bucket.index not in self.method.shared:
                self.method.shared[bucket.index] = weights.clone()

    def ready(self, layer: int) -> None:
        """Do nothing: gradients are not exchanged."""

    def finish(self) -> None:
        for bucket in self.buckets:
            bucket.gradient.mul_(self._context.workers)  # undo the division by the number of workers

    def updated(self) -> None:
        step, shared = self._context.step, self.method.shared
        sent = self._due(step)
        with self._clock(self._label):
            for bucket, weights in sent:
                torch.sub(shared[bucket.index], weights, out=bucket.gradient).div_(self._context.workers)
        for bucket, _ in sent:
            self._begin_bucket(bucket)
            self._post()
        self._advance(wait=True)
        with self._clock("optimizer"):
            for bucket, _ in sent:
                shared[bucket.index].sub_(bucket.gradient)
            for bucket, weights in self._due(step - self.method.delay):
                if self.method.mixing:
                    weights.lerp_(shared[bucket.index], 1 - self.method.mixing)
                else:
                    weights.copy_(shared.pop(bucket.index))

    def _due(self, step: int) -> list[tuple[Bucket, Tensor]]:
        """The buckets that are exchanged at ``step``, with their weights."""
        pairs = zip(self.buckets, self._weights, strict=True)
        fragments = self.method.fragments
        return [(b, w) for b, w in pairs if self.method.is_due(b.index * fragments // len(self.buckets), step)]

    @property
    def weights_differ(self) -> bool:
        return bool(self.method.shared)


class ServerExchange(Exchange):
    """A parameter server's part: bucket by bucket, it collects the workers' pushes and answers them.

    ``gradients``: shape (d,), memory for the sums; buckets split it. ``optimizer``: makes new weights from the sums,
    if the server owns the optimizer in this topology.
    """

    transport: ParameterServerTransport

    def __init__(
        self,
        method: Method,
        groups: Plan,
        buckets: list[Bucket],
        transport: ParameterServerTransport,
        gradients: Tensor,
        optimizer: ServerOptimizer | None,
    ) -> None:
        super().__init__(method, groups, buckets, transport)
        self._gradients, self._optimizer = gradients, optimizer
        self._ranges = list(pairwise(accumulate((b.size for b in buckets), initial=0)))
        self.communications = []
        self.sent_entries = []

    def begin(self, context: StepContext) -> None:
        self.transport.reset()

    def ready(self, layer: int) -> None:
        """Do nothing: a server has no layers."""

    def warm_start(self) -> None:
        """Do nothing: only workers have the method's state."""

    def finish(self) -> None:
        """Run one step: for every bucket, collect the pushes and answer them."""
        sparse, pull = self.method.sum_kind == "sparse", None
        for start, stop in self._ranges:
            push = self.transport.collect(sparse, stop - start)
            if pull is not None:
                pull.wait()  # it ended before this push, so this takes no time; the sent weights may change now
            pull = self.transport.answer(self._answer(start, stop, push.wait(), sparse))
        pull.wait()

    def _answer(self, start: int, stop: int, messages: dict[int, Tensor], sparse: bool) -> Tensor:
        total = self.transport.add_up(self._gradients[start:stop], [messages[rank] for rank in sorted(messages)])
        if self.transport.topology.owner == "server":
            self._optimizer.step(self._gradients, start, stop)
            return self._optimizer.parameters[start:stop]
        if not sparse:
            return total
        indices = total.nonzero().view(-1)
        return self.transport.pack(total[indices], indices, stop - start)
