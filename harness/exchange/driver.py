"""Drives a method over the buckets of one step: starts each while backward runs, in one order.

All workers issue the same requests in the same order, bucket by bucket and within a bucket round
by round, because engines pair calls by order (and eq. 5 of the paper has one communication at a
time). A method's own segments run here, on the main thread, and are timed as what they are.
"""

import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from harness.comm import Pending
from harness.exchange.method import Bucket, Method, Request
from harness.training.clock import Clock


@dataclass
class _Open:
    """A bucket whose exchange has begun."""

    segments: Generator
    request: Request
    bucket: int
    posted: int = 0
    posted_at: float = 0.0
    pending: Pending | None = None


class Exchange:
    """One method, its buckets and the layers that fill them.

    ``groups``: (start, stop) ranges of layers, in exchange order; ``buckets``: theirs, likewise.
    ``communications``: (bucket, posted, seen done) of the last step, by the host's clock; done is seen
    between two layers' backward or while waiting, so that the end is late by up to one layer.
    ``sent_entries``: what each bucket sent in the last step.
    """

    def __init__(self, method: Method, groups, buckets: list[Bucket], topology, clock: Clock):
        self.method, self.buckets = method, buckets
        self.groups, self.topology, self._clock = groups, topology, clock
        self._bucket_of = [b for b, (i, j) in enumerate(groups) for _ in range(i, j)]
        self._label = "other" if method.exact else "sparsify"

    def begin(self, step: int) -> None:
        self._step = step
        self._missing = [stop - start for start, stop in self.groups]
        self._next = 0
        self._open: deque[_Open] = deque()
        self.communications: list[tuple[int, float, float]] = []
        self.sent_entries = [0] * len(self.buckets)
        self.topology.reset()

    def settle(self) -> None:
        """Put the method's state where long training would have it, given a gradient in the buckets."""
        for bucket in self.buckets:
            self.method.settle(bucket)

    def ready(self, layer: int) -> None:
        """The layer's gradient is in its bucket; called from backward."""
        self._missing[self._bucket_of[layer]] -= 1
        while self._next < len(self.buckets) and not self._missing[self._next]:
            self._begin_bucket(self.buckets[self._next])
            self._next += 1
        self._advance(wait=False)

    def finish(self) -> None:
        """Backward has ended: wait for what is still under way."""
        if self._next < len(self.buckets):
            raise RuntimeError(f"bucket {self._next} got no gradient for {self._missing[self._next]} layers")
        self._advance(wait=True)

    def _begin_bucket(self, bucket: Bucket) -> None:
        with self._clock(self._label):
            segments = self.method.exchange(bucket, self._step)
            self._open.append(_Open(segments, next(segments), bucket.index))
        self._post()

    def _post(self) -> None:
        """Post what may go: a bucket's first round follows the last round of the bucket before."""
        for item in self._open:
            if item.pending is None:
                item.posted_at = time.perf_counter()
                before = self.topology.sent_entries
                item.pending = self.topology.start(item.request)
                self.sent_entries[item.bucket] += self.topology.sent_entries - before
                item.posted += 1
            if item.posted < self.method.rounds:
                return

    def _advance(self, wait: bool) -> None:
        """Resume the oldest exchanges whose request is answered; with ``wait``, all of them."""
        while self._open:
            head = self._open[0]
            if not head.pending.done():
                if not wait:
                    return
                with self._clock("communication"):
                    head.pending.wait()
            self.communications.append((head.bucket, head.posted_at, time.perf_counter()))
            with self._clock(self._label):
                answer = self.topology.finish(head.request, head.pending)
                try:
                    head.request, head.pending = head.segments.send(answer), None
                except StopIteration:
                    self._open.popleft()
            self._post()
