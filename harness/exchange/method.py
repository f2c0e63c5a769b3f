"""The method contract: how a bucket of gradient becomes the workers' averaged gradient.

A method is a coroutine. It yields *requests* (what is to be combined, not how) and is resumed
with the answer; a topology (``harness.topology``) answers them on a communicator. The harness owns
the clock, the byte count and the overlap with backward.

Gradients arrive already divided by the number of workers, so the *sum* that a method asks for is
the mean that SGD needs (paper, eq. 1), and every residual is kept in those units.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from harness.exchange import selection
from harness.exchange.selection import Threshold, TopK

__all__ = ["Bucket", "Gather", "Method", "Sparsifier", "Sum", "Threshold", "TopK"]


@dataclass(frozen=True)
class Bucket:
    """A flat slice of gradient that is exchanged at once.

    ``index``: place in the order of exchange, 0 first; it names the bucket's state.
    ``gradient``: shape (d,), this worker's gradient / workers; a method may overwrite it.
    ``layers``: entries of each layer in it, in order; empty where it is one piece.
    ``ratio``: of this bucket alone, where a plan gives one.
    """

    index: int
    gradient: Tensor
    layers: tuple[int, ...] = ()
    ratio: float | None = None

    @property
    def size(self) -> int:
        return self.gradient.numel()


@dataclass(frozen=True)
class Sum:
    """Request: the sum over workers of a tensor, dense or as (values, indices).

    Dense (``indices`` is None): ``values`` has shape (d,) and is overwritten by the sum.
    Sparse: ``values`` and int32 or int64 ``indices`` have shape (k,), k may differ between workers, indices
    are unique; the sum is written to ``out``, shape (d,). The answer is the tensor written.
    """

    values: Tensor
    indices: Tensor | None = None
    out: Tensor | None = None


@dataclass(frozen=True)
class Gather:
    """Request: every worker's tensor, in rank order; shape (n,), n may differ between workers."""

    tensor: Tensor


Request = Sum | Gather

OVERSHOOT = 0.583  # of its steps' rms: how far a walk jumps beyond a boundary, on average


class Method:
    """Base of all methods; a subclass is a dataclass whose fields are its parameters.

    ``scope``: how the gradient is cut: one bucket per "model", per "layer", per group of the "plan",
    or layers merged up to a fixed "size".
    ``exact``: the aggregate equals the dense mean; such a method has no ratio, its copies count as
    other, not as sparsification.
    ``rounds``: how many requests one exchange makes.
    ``one_sum``: "dense" or "sparse" if the exchange is one such Sum, dense over the whole bucket or written to
    it, and its answer is the aggregate, untouched: what a parameter server can answer. None otherwise.
    ``cycle``: the method's behaviour depends on the step only through (step - 1) mod cycle.
    """

    scope: ClassVar[Literal["model", "layer", "plan", "size"]] = "layer"
    exact: ClassVar[bool] = False
    rounds: ClassVar[int] = 1
    one_sum: ClassVar[Literal["dense", "sparse"] | None] = None

    @property
    def cycle(self) -> int:
        return 1

    def phase(self, step: int) -> str:
        """Name of what is done at ``step`` (1, 2, ...); timing tells phases apart."""
        return "step"

    def exchange(self, bucket: Bucket, step: int) -> Generator[Request, Any, Tensor]:
        """Yield requests, return the aggregate: shape (d,), the same bits on every worker."""
        raise NotImplementedError

    def settle(self, bucket: Bucket) -> None:
        """Put the state where long training would have it, given one gradient (for timing)."""

    def state_dict(self) -> dict:
        """All that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, got {sorted(state)}")


@dataclass
class Sparsifier(Method):
    """Error feedback, wire format and variable counts, done once: a subclass writes ``select`` or ``rule``.

    The residual is what was not sent: it is added to the next gradient (paper, Algorithm 1).
    Law: sent + residual == gradient + old residual, bit for bit.
    """

    one_sum = "sparse"

    ratio: float  # k / d asked for, in (0, 1]
    selection: Literal["torch", "fast"] = field(default="torch", kw_only=True)  # the paper's is "torch"
    residuals: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    rooms: dict[int, Tensor | None] = field(default_factory=dict, init=False, repr=False)

    def select(self, acc: Tensor, bucket: Bucket, step: int) -> Tensor | TopK | Threshold:
        """What to send of ``acc`` = gradient + residual, shape (d,): unique indices, or a rule."""
        raise NotImplementedError

    def rule(self, bucket: Bucket, step: int) -> TopK | Threshold | None:
        """The rule, where it is known before ``acc`` is: one pass can then accumulate and take.

        None, the default: ``select`` is to be asked.
        """
        return None

    @cached_property
    def selector(self):
        """The implementation of selection: ``take``, ``kth_magnitude`` and ``room``."""
        return select.implementation(self.selection)

    def ratio_of(self, bucket: Bucket) -> float:
        return bucket.ratio or self.ratio

    def k(self, bucket: Bucket, entries: int | None = None) -> int:
        """k = max(1, floor(ratio * d)), d = ``entries`` or the whole bucket."""
        # The small term undoes the rounding of, say, 0.29 * 100.
        return max(1, int(self.ratio_of(bucket) * (entries or bucket.size) + 1e-6))

    def residual(self, bucket: Bucket) -> Tensor:
        if bucket.index not in self.residuals:
            self.residuals[bucket.index] = torch.zeros_like(bucket.gradient)
        return self.residuals[bucket.index]

    def exchange(self, bucket: Bucket, step: int) -> Generator[Request, Any, Tensor]:
        acc, gradient = self.residual(bucket), bucket.gradient
        rule = self.rule(bucket, step)
        if rule is None:
            rule, gradient = self.select(acc.add_(gradient), bucket, step), None
        # While the request is under way its memory is in no one else's reach; then the next step's is ready.
        room = self.rooms.pop(bucket.index, None)
        if room is None:
            room = self.selector.room(acc)
        values, indices = self.selector.take(acc, rule, gradient, room)  # what stays in acc is the new residual
        aggregate = yield Sum(values, indices, out=bucket.gradient)
        self.rooms[bucket.index] = room
        return aggregate

    def settle(self, bucket: Bucket) -> None:
        """Draw the residual from its steady law, so that timing need not wait hundreds of steps.

        Read each entry as a random walk, its steps as large as its layer's rms, that is set back to 0 when it is
        sent, at a magnitude of h. It lies on (-h', h'), h' = h + 0.583 rms, with density (h' - |x|) / h'^2,
        and a fraction (rms / h')^2 is sent in each step; 0.583 is by how much discrete steps overshoot a
        boundary (Siegmund, Sequential Analysis, 1985, ch. X). h is where the layers send ``ratio`` together.
        """
        sizes = bucket.layers or (bucket.size,)
        rms = [float(layer.square().mean().sqrt()) for layer in bucket.gradient.split(sizes)]
        h = _steady_threshold(rms, sizes, self.ratio_of(bucket))
        residual = torch.rand_like(bucket.gradient).sub_(torch.rand_like(bucket.gradient))
        for layer, step in zip(residual.split(sizes), rms, strict=True):
            layer.mul_(h + OVERSHOOT * step)
        self.residuals[bucket.index] = residual.masked_fill_(residual.abs() >= h, 0.0)

    def state_dict(self) -> dict:
        return {"residuals": self.residuals}

    def load_state_dict(self, state: dict) -> None:
        self.residuals = dict(state["residuals"])


def _steady_threshold(rms: list[float], sizes: Sequence[int], ratio: float) -> float:
    """The h at which walks of such steps, ``sizes`` of each, reach h as often as ``ratio`` asks."""

    def sent(h: float) -> float:
        return sum(n * min(1.0, (r / (h + OVERSHOOT * r)) ** 2) for r, n in zip(rms, sizes, strict=True) if r)

    k = ratio * sum(sizes)
    low, high = 0.0, (sum(n * r * r for r, n in zip(rms, sizes, strict=True)) / k) ** 0.5
    for _ in range(50):
        h = (low + high) / 2
        low, high = (h, high) if sent(h) > k else (low, h)
    return high
