"""Sparsifiers: methods that send some entries whole and keep the others for later."""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from harness.exchange import selection
from harness.exchange.feedback import ErrorFeedback
from harness.exchange.method import At, Bucket, Request, Sum
from harness.exchange.selection import Threshold, TopK
from harness.exchange.steady import steady_residual


@dataclass
class Sparsifier(ErrorFeedback):
    """Wire format, variable counts and residual, done once: a subclass writes ``select`` or ``rule``.

    Law: sent + residual == gradient + old residual, bit for bit.
    """

    one_sum = "sparse"
    conserves_mass = "bits"
    exact_when = {"ratio": 1.0}  # noqa: RUF012 - a constant, read by tests

    ratio: float  # k / d asked for, in (0, 1]
    selection: Literal["torch", "fast"] = field(default="torch", kw_only=True)  # the paper's is "torch"
    rooms: dict[int, Tensor | None] = field(default_factory=dict, init=False, repr=False)

    def select(self, acc: Tensor, bucket: Bucket, at: At) -> Tensor | TopK | Threshold:
        """What to send of ``acc`` = gradient + residual, shape (d,): unique indices, or a rule."""
        raise NotImplementedError

    def rule(self, bucket: Bucket, at: At) -> TopK | Threshold | None:
        """The rule, where it is known before ``acc`` is: one pass then accumulates and takes.

        None, the default: ``select`` is asked.
        """
        return None

    @cached_property
    def selector(self):
        """The implementation of selection: ``take``, ``kth_magnitude`` and ``room``."""
        return selection.implementation(self.selection)

    def ratio_of(self, bucket: Bucket) -> float:
        return bucket.ratio or self.ratio

    def k(self, bucket: Bucket, entries: int | None = None) -> int:
        """k = max(1, floor(ratio * d)), d = ``entries`` or the whole bucket."""
        # The small term undoes the rounding of, say, 0.29 * 100.
        return max(1, int(self.ratio_of(bucket) * (entries or bucket.size) + 1e-6))

    def exchange(self, bucket: Bucket, at: At) -> Generator[Request, Any, Tensor]:
        acc, gradient = self.residual(bucket), bucket.gradient
        rule = self.rule(bucket, at)
        if rule is None:
            rule, gradient = self.select(acc.add_(gradient), bucket, at), None
        # The request's memory is taken out of ``rooms`` until the answer is there, and used again afterwards.
        room = self.rooms.pop(bucket.index, None)
        if room is None:
            room = self.selector.room(acc)
        values, indices = self.selector.take(acc, rule, gradient, room)  # what stays in acc is the new residual
        aggregate = yield Sum(values, indices, out=bucket.gradient)
        self.rooms[bucket.index] = room
        return aggregate

    def settle(self, bucket: Bucket) -> None:
        """Draw the residual from its steady law, so that timing need not wait hundreds of steps."""
        if self.error_feedback:
            self.residuals[bucket.index] = steady_residual(bucket.gradient, bucket.sizes, self.ratio_of(bucket))
