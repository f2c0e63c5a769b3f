"""Drives a method over the buckets of one step: starts each while backward runs, in one order.

All workers issue the same requests in the same order, bucket by bucket and within a bucket round by round,
because engines pair calls by order (and eq. 5 of the paper has one communication at a time). A method's own
segments run here, on the main thread, and are timed as what they are.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from dlgs_bench.comm import Pending
from dlgs_bench.exchange.local_steps import LocalSteps
from dlgs_bench.exchange.method import Bucket, Method, Request, StepContext
from dlgs_bench.exchange.transport import ParameterServerTransport, Transport


class Exchange(ABC):
    """One method and its buckets, on one process; what it does in a step depends on the process's role.

    ``groups``: (start, stop) ranges of layers, in exchange order; ``buckets``: theirs, likewise.
    ``transport``: answers the method's requests and counts what is sent.
    """

    def __init__(self, method: Method, groups, buckets: list[Bucket], transport: Transport):
        self.method, self.groups, self.buckets, self.transport = method, groups, buckets, transport

    def move(self, index: int, gradient: Tensor) -> None:
        """From now on a bucket's gradient, shape (d,), is in other memory."""
        self.buckets[index] = replace(self.buckets[index], gradient=gradient)

    @abstractmethod
    def begin(self, context: StepContext) -> None:
        """A step begins."""

    @abstractmethod
    def ready(self, layer: int) -> None:
        """The layer's gradient is in its bucket; called from backward."""

    @abstractmethod
    def finish(self) -> None:
        """Backward has ended: wait for what is still under way."""

    def updated(self) -> None:  # noqa: B027 - most have nothing left to do
        """The optimizer has made its step."""

    @property
    def apart(self) -> bool:
        """Whether workers may now have weights of their own."""
        return False

    @abstractmethod
    def warm_start(self) -> None:
        """Put the method's state where long training would have it, given a gradient in the buckets."""


@dataclass
class _Open:
    """A bucket whose exchange has begun."""

    segments: Generator[Request, Any, Tensor]
    request: Request
    bucket: Bucket
    announced: int  # requests
    posted: int = 0
    posted_at: float = 0.0
    pending: Pending | None = None


class WorkerExchange(Exchange):
    """A worker's part: it runs the method.

    ``communications``: (bucket, posted, ended) of the last step, by the host's clock. Where the engine does not
    say when one ended, it is when this thread saw it: between two layers' backward, or while it waited.
    ``sent_entries``: what each bucket sent in the last step. ``bucket_of``: the bucket that each layer is in.
    """

    def __init__(self, method: Method, groups, buckets: list[Bucket], transport: Transport, clock):
        super().__init__(method, groups, buckets, transport)
        self._clock = clock
        self.bucket_of = [b for b, (i, j) in enumerate(groups) for _ in range(i, j)]
        self._label = "other" if method.uncompressed else "sparsify"

    def begin(self, context: StepContext) -> None:
        self._at = context
        self._missing = [stop - start for start, stop in self.groups]
        self._next = 0
        self._open: deque[_Open] = deque()
        self.communications: list[tuple[int, float, float]] = []
        self.sent_entries: list[int | Tensor] = [0] * len(self.buckets)
        self.transport.reset()

    def warm_start(self) -> None:
        for bucket in self.buckets:
            self.method.warm_start(bucket)

    def ready(self, layer: int) -> None:
        self._missing[self.bucket_of[layer]] -= 1
        while self._next < len(self.buckets) and not self._missing[self._next]:
            self._begin_bucket(self.buckets[self._next])
            self._post()
            self._next += 1
        self._advance(wait=False)

    def finish(self) -> None:
        if self._next < len(self.buckets):
            raise RuntimeError(f"bucket {self._next} got no gradient for {self._missing[self._next]} layers")
        self._advance(wait=True)

    def _begin_bucket(self, bucket: Bucket) -> None:
        with self._clock(self._label):
            segments = self.method.exchange(bucket, self._at)
            self._open.append(_Open(segments, next(segments), bucket, self.method.num_requests(bucket, self._at)))

    def _post(self) -> None:
        """Post what may go: a bucket's first round follows the last round of the bucket before."""
        for item in self._open:
            if item.pending is None:
                if item.posted == item.announced:
                    raise self._miscounted(item, "makes more")
                item.posted_at = time.perf_counter()
                item.pending = self._counting(item, self.transport.start, item.request)
                item.posted += 1
            if item.posted < item.announced:
                return

    def _counting(self, item: _Open, call: Callable, *request):
        """What ``call`` returns; entries that it counts as sent are the bucket's."""
        before = self.transport.sent_entries
        result = call(*request)
        self.sent_entries[item.bucket.index] += self.transport.sent_entries - before
        return result

    def _advance(self, wait: bool) -> None:
        """Resume the oldest exchanges whose request is answered; with ``wait``, all of them."""
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
                    head.request, head.pending = head.segments.send(answer), None
                except StopIteration as end:
                    if head.posted < head.announced:
                        raise self._miscounted(head, f"makes only {head.posted}") from None
                    self._apply(end.value, head.bucket)
                    self._open.popleft()
            self._post()

    def _apply(self, aggregate: Tensor, bucket: Bucket) -> None:
        """Put what the method returned where the optimizer reads it."""
        target = bucket.gradient
        if aggregate is target:
            return
        if not isinstance(aggregate, Tensor) or aggregate.shape != target.shape or aggregate.dtype != target.dtype:
            found = f"{aggregate.dtype} {tuple(aggregate.shape)}" if isinstance(aggregate, Tensor) else repr(aggregate)
            wanted = f"{target.dtype} {tuple(target.shape)}"
            raise TypeError(f"{type(self.method).__name__} returned {found} for bucket {bucket.index}, not {wanted}")
        target.copy_(aggregate)

    def _miscounted(self, item: _Open, makes: str) -> RuntimeError:
        name = type(self.method).__name__
        return RuntimeError(
            f"{name}.rounds announces {item.announced} request(s) for bucket {item.bucket.index}, "
            f"but the exchange {makes}: engines would pair the wrong calls"
        )


class LocalExchange(WorkerExchange):
    """A worker's part where weights are exchanged, every so many steps, once the optimizer has made its own.

    ``parameters``: shape (d,), the model's weights, which the buckets cut as they cut the gradient.
    """

    method: LocalSteps

    def __init__(
        self, method: LocalSteps, groups, buckets: list[Bucket], transport: Transport, clock, parameters: Tensor
    ):
        super().__init__(method, groups, buckets, transport, clock)
        self._weights = parameters.split([bucket.size for bucket in buckets])

    def begin(self, context: StepContext) -> None:
        super().begin(context)
        if not self.apart:
            self.method.shared = {b.index: w.clone() for b, w in zip(self.buckets, self._weights, strict=True)}

    def ready(self, layer: int) -> None:
        """The gradient stays here."""

    def finish(self) -> None:
        for bucket in self.buckets:
            bucket.gradient.mul_(self._at.workers)  # it is a share of a mean no more

    def updated(self) -> None:
        if not self.method.exchanges_at(self._at.step):
            return
        shared = self.method.shared
        with self._clock(self._label):
            for bucket, weights in zip(self.buckets, self._weights, strict=True):
                torch.sub(shared[bucket.index], weights, out=bucket.gradient).div_(self._at.workers)
        for layer in range(len(self.bucket_of)):
            super().ready(layer)
        super().finish()
        with self._clock("optimizer"):
            for bucket, weights in zip(self.buckets, self._weights, strict=True):
                torch.sub(shared.pop(bucket.index), bucket.gradient, out=weights)

    @property
    def apart(self) -> bool:
        return bool(self.method.shared)


class ServerExchange(Exchange):
    """A parameter server's part: it collects the workers' pushes of each bucket, in their order, and answers.

    ``gradients``: shape (d,), where the sums go, which the buckets cut. Where the topology's owner is the server,
    ``optimizer`` makes new weights of them, bucket by bucket.
    """

    transport: ParameterServerTransport

    def __init__(
        self,
        method: Method,
        groups,
        buckets: list[Bucket],
        transport: ParameterServerTransport,
        gradients: Tensor,
        optimizer,
    ):
        super().__init__(method, groups, buckets, transport)
        self._gradients, self._optimizer = gradients, optimizer
        self._ranges = list(pairwise(accumulate((b.size for b in buckets), initial=0)))
        self.communications: list[tuple[int, float, float]] = []
        self.sent_entries: list[int | Tensor] = []

    def begin(self, context: StepContext) -> None:
        self.transport.reset()

    def ready(self, layer: int) -> None:
        """No layers here."""

    def warm_start(self) -> None:
        """The method's state is with the workers."""

    def finish(self) -> None:
        """One step: for every bucket, collect the pushes and answer them."""
        sparse, pull = self.method.sum_kind == "sparse", None
        for start, stop in self._ranges:
            push = self.transport.collect(sparse, stop - start)
            if pull is not None:
                pull.wait()  # it ended before this push, so no time is lost, and its weights may change again
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
