"""Sparsifiers: methods that send some entries whole and keep the others for later, and what they are made of."""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import selection
from dlgs_bench.exchange.async_device import DeferredScalar, is_async
from dlgs_bench.exchange.feedback import ErrorFeedback
from dlgs_bench.exchange.method import Bucket, Method, Request, StepContext, Sum
from dlgs_bench.exchange.selection import MANY, NAN, Threshold, TopK
from dlgs_bench.exchange.stationary import stationary_residual

# Where an estimator is after long training is found with so many entries and steps.
SAMPLE, SETTLED_AFTER = 20_000, 640

SPARE = 1.25  # room for entries, by the most that a worker chose in the last step


def share(part: float, entries: int) -> int:
    """max(1, floor(part * entries)), as if products were exact: 29 for 0.29 of 100."""
    return max(1, int(part * entries * (1 + 1e-12)))


@dataclass
class Ratio(ErrorFeedback):
    """A method that sends k of d entries and keeps the others for later."""

    exact_when = {"ratio": 1.0}  # noqa: RUF012 - a constant, read by tests

    ratio: float  # k / d asked for, in (0, 1]

    def __post_init__(self):
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio: {self.ratio!r} is not valid; give a number in (0, 1]")

    def ratio_of(self, bucket: Bucket) -> float:
        return bucket.ratio or self.ratio

    def k(self, bucket: Bucket, entries: int | None = None) -> int:
        """k = max(1, floor(ratio * d)), d = ``entries`` or the whole bucket."""
        return share(self.ratio_of(bucket), entries or bucket.size)

    def warm_start(self, bucket: Bucket) -> None:
        """Draw the residual from its steady law, so that timing need not wait hundreds of steps."""
        if self.error_feedback:
            self.residuals[bucket.index] = stationary_residual(bucket.gradient, bucket.sizes, self.ratio_of(bucket))


@dataclass
class Selects(Method):
    """A method that takes entries out of a vector by a rule."""

    selection: Literal["torch", "compiled"] = field(default="torch", kw_only=True)  # the paper's is "torch"

    @cached_property
    def selector(self):
        """The implementation of selection: ``take``, ``kth_magnitude`` and ``workspace``."""
        return selection.implementation(self.selection)


@dataclass
class Sparsifier(Selects, Ratio):
    """Wire format, variable counts and residual, done once: a subclass writes ``select`` or ``rule``.

    Law: sent + residual == gradient + old residual, bit for bit.
    ``count_within``: the first step, of normally distributed entries, sends k, give or take this part of it.
    """

    sum_kind = "sparse"
    conserves_mass = "bits"
    state: ClassVar[tuple[str, ...]] = ("chosen",)
    count_within: ClassVar[float] = 0.0

    workspaces: dict[int, Tensor | None] = field(default_factory=dict, init=False, repr=False)
    chosen: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # lately, the most of all workers
    counts: dict[int, DeferredScalar] = field(default_factory=dict, init=False, repr=False)  # what ``chosen`` will be

    def select(self, corrected: Tensor, bucket: Bucket, context: StepContext) -> Tensor | TopK | Threshold:
        """What to send of ``corrected`` = gradient + residual, shape (d,): unique indices, or a rule."""
        raise NotImplementedError

    def rule(self, bucket: Bucket, context: StepContext) -> TopK | Threshold | None:
        """The rule, where it is known before ``corrected`` is: one pass then accumulates and takes.

        None, the default: ``select`` is asked.
        """
        return None

    def exchange(self, bucket: Bucket, context: StepContext) -> Generator[Request, Any, Tensor]:
        corrected, gradient = self.residual(bucket), bucket.gradient
        rule = self.rule(bucket, context)
        if rule is not None and is_async(corrected):
            return (yield from self._queued(rule, bucket))
        selected: Tensor | TopK | Threshold
        if rule is None:
            selected, gradient = self.select(corrected.add_(gradient), bucket, context), None
        else:
            selected = rule
        # The request's memory is taken out of ``workspaces`` until the answer is there, and used again afterwards.
        workspace = self.workspaces.pop(bucket.index, None)
        if workspace is None:
            workspace = self.selector.workspace(corrected)
        values, indices = self.selector.take(
            corrected, selected, gradient, workspace
        )  # what stays in ``corrected`` is the new residual
        aggregate = yield Sum(values, indices, out=bucket.gradient)
        self.workspaces[bucket.index] = workspace
        return aggregate

    def _queued(self, rule: TopK | Threshold, bucket: Bucket) -> Generator[Request, Any, Tensor]:
        """An exchange in which the host waits for nothing: messages have the length that the counts of the step before
        let expect. What finds no room waits in the residual for the next step, and NaN is refused then."""
        self._read(bucket.index)
        most = rule.k if isinstance(rule, TopK) else self._most(bucket)
        values, indices, chosen = self.selector.take_at_most(self.residual(bucket), rule, most, bucket.gradient)
        aggregate = yield Sum(values, indices, bucket.gradient, chosen)
        self.counts[bucket.index] = DeferredScalar(chosen)
        return aggregate

    def _most(self, bucket: Bucket) -> int:
        """For how many entries of a bucket there is room; among equals the same on all."""
        k = self.k(bucket)
        expected = max(self.chosen.get(bucket.index, 2 * k), k)
        return min(bucket.size, int(SPARE * expected) + 1)

    def _read(self, index: int) -> None:
        if index in self.counts:
            self.chosen[index] = self.counts.pop(index).read()
        if self.chosen.get(index) == MANY:
            raise FloatingPointError(NAN)

    def state_dict(self) -> dict[str, Any]:
        for index in list(self.counts):
            self._read(index)
        return super().state_dict()


@dataclass
class Estimator(Sparsifier):
    """A sparsifier whose threshold is an estimate, so that it sends about k entries at first, and maybe another number
    in long training. ``fewest``: entries that an estimate needs; of a smaller bucket it sends the k largest."""

    count_within = 1 / 3
    fewest: ClassVar[int] = 1000

    def warm_start(self, bucket: Bucket) -> None:
        """Run the estimate for long on a sample of the bucket, whose entries are random walks with the rms of their
        layers; every entry takes the residual of the sampled one beside it."""
        if not self.error_feedback:
            return
        stride = max(1, bucket.size // SAMPLE)
        layers = bucket.gradient.split(bucket.sizes)
        rms = torch.cat([layer.square().mean().sqrt().expand(len(layer)) for layer in layers])[::stride]
        corrected = torch.zeros_like(rms)
        walks = Bucket(bucket.index, rms, ratio=bucket.ratio)
        for step in range(1, SETTLED_AFTER + 1):
            corrected.addcmul_(rms, torch.randn_like(rms))
            self.selector.take(corrected, self.select(corrected, walks, StepContext(step, rank=0, workers=1, lr=0.0)))
        self.residuals[bucket.index] = corrected.repeat_interleave(stride)[: bucket.size].contiguous()
