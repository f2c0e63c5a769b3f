"""Sparsifiers: base classes of methods that send some entries uncompressed and keep the others in a residual."""

from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Literal

from torch import Tensor

from dlgs_bench.buckets import num_entries
from dlgs_bench.exchange import selection
from dlgs_bench.exchange.async_device import DeferredScalar, is_async
from dlgs_bench.exchange.feedback import ErrorFeedback
from dlgs_bench.exchange.method import Bucket, Method, Requests, StepContext, Sum
from dlgs_bench.exchange.selection import MANY, NAN, Threshold, TopK
from dlgs_bench.exchange.stationary import stationary_residual

SPARE = 1.25  # the size of a message, divided by the largest number of entries that a worker chose in the last step


@dataclass
class Ratio(ErrorFeedback):
    """Base of methods that send k of d entries and keep the others in the residual."""

    exact_when = {"ratio": 1.0}  # noqa: RUF012 - a constant, read by tests

    ratio: float  # requested k / d, in (0, 1]

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio: {self.ratio!r} is not valid; give a number in (0, 1]")

    def ratio_of(self, bucket: Bucket) -> float:
        return bucket.ratio or self.ratio

    def k(self, bucket: Bucket, entries: int | None = None) -> int:
        """k = max(1, floor(ratio * d)), where d is ``entries``, by default the size of the bucket."""
        return num_entries(self.ratio_of(bucket), entries or bucket.size)

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        """Draw the residual from its stationary distribution, so that timing need not wait for hundreds of steps."""
        if self.error_feedback:
            self.residuals[bucket.index] = stationary_residual(bucket.gradient, bucket.sizes, self.ratio_of(bucket))


@dataclass
class Selects(Method):
    """Base of methods that select entries of a vector by a rule."""

    selection: Literal["torch", "compiled"] = field(default="torch", kw_only=True)  # the paper used torch

    @cached_property
    def selector(self) -> ModuleType:
        """The module that implements selection: ``take``, ``take_at_most``, ``kth_magnitude`` and ``workspace``."""
        return selection.implementation(self.selection)


@dataclass
class Sparsifier(Selects, Ratio):
    """Base of sparsifiers: it handles messages and the residual. A subclass implements ``select`` or ``rule``.

    Law: sent + residual == gradient + old residual, bit for bit.
    ``count_within``: the largest relative difference between k and the number of entries that the first step sends, if
    the gradient's entries are normally distributed.
    """

    sum_kind = "sparse"
    conserves_mass = "bits"
    state: ClassVar[tuple[str, ...]] = ("chosen",)
    count_within: ClassVar[float] = 0.0

    workspaces: dict[int, Tensor | None] = field(default_factory=dict, init=False, repr=False)
    # By bucket: the largest number of entries that a worker chose in the last step, once it is read from the device.
    chosen: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    counts: dict[int, DeferredScalar] = field(default_factory=dict, init=False, repr=False)  # not read yet

    def select(self, corrected: Tensor, bucket: Bucket, context: StepContext) -> Tensor | TopK | Threshold:
        """The unique indices of the entries to send of ``corrected`` = gradient + residual, shape (d,), or a rule."""
        raise NotImplementedError

    def rule(self, bucket: Bucket, context: StepContext) -> TopK | Threshold | None:
        """A rule that does not depend on ``corrected``, so one pass accumulates and selects; None to use ``select``."""
        return None

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected, gradient = self.residual(bucket), bucket.gradient
        rule = self.rule(bucket, context)
        if rule is not None and is_async(corrected):
            return (yield from self._exchange_without_sync(rule, bucket))
        selected: Tensor | TopK | Threshold
        if rule is None:
            selected, gradient = self.select(corrected.add_(gradient), bucket, context), None
        else:
            selected = rule
        # The request uses the workspace until its answer arrives. Later steps use the workspace again.
        workspace = self.workspaces.pop(bucket.index, None)
        if workspace is None:
            workspace = self.selector.workspace(corrected)
        values, indices = self.selector.take(corrected, selected, gradient, workspace)
        # The entries that remain in ``corrected`` are the new residual.
        aggregate = yield Sum(values, indices, out=bucket.gradient)
        self.workspaces[bucket.index] = workspace
        return aggregate

    def _exchange_without_sync(self, rule: TopK | Threshold, bucket: Bucket) -> Requests:
        """An exchange on an asynchronous device in which the host waits for nothing.

        The length of messages is predicted from the previous step's counts. Entries that do not fit stay in the
        residual. NaN is detected one step late.
        """
        self._read(bucket.index)
        most = rule.k if isinstance(rule, TopK) else self._most(bucket)
        values, indices, chosen = self.selector.take_at_most(self.residual(bucket), rule, most, bucket.gradient)
        aggregate = yield Sum(values, indices, bucket.gradient, chosen)
        self.counts[bucket.index] = DeferredScalar(chosen)
        return aggregate

    def _most(self, bucket: Bucket) -> int:
        """The size of a bucket's messages, in entries; the same on all workers, as collectives require."""
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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts.clear()  # of a step that the state does not contain
        super().load_state_dict(state)


@dataclass
class Estimator(Sparsifier):
    """Base of sparsifiers that estimate a threshold. They send about k entries at first; the number may drift.

    ``fewest``: the number of entries that an estimate needs. Of a smaller bucket, the k largest entries are sent.
    """

    count_within = 1 / 3
    fewest: ClassVar[int] = 1000

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        """Run the estimator for many steps on a sample of the bucket, and set the residual to its result."""

        def send(corrected: Tensor, drawn: Tensor, step: int) -> None:
            sample = Bucket(bucket.index, drawn, ratio=bucket.ratio)
            self.selector.take(corrected, self.select(corrected, sample, StepContext(step, rank=0, workers=1, lr=0.0)))

        self.simulate(bucket, send)
