"""The method contract: how a bucket of gradient becomes the workers' averaged gradient.

A method is a coroutine. It yields *requests* (what is to be combined, not how), is resumed with each answer, and
returns the aggregate, which is what the optimizer applies. A topology (``dlgs_bench.exchange.transport``) answers the
requests on a communicator. The harness owns the clock, the byte count and the overlap with backward.

Gradients arrive already divided by the number of workers, so the *sum* that a method asks for is the mean that
SGD needs (paper, eq. 1), and every residual is kept in those units.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from dlgs_bench.comm.collectives import PeerExchange


@dataclass(frozen=True)
class StepContext:
    """Where an exchange stands: the step (1, 2, ...), this worker's rank, how many workers there are, and the
    optimizer's learning rate in this step."""

    step: int
    rank: int
    workers: int
    lr: float


@dataclass(frozen=True)
class Bucket:
    """A flat slice of gradient that is exchanged at once.

    ``index``: its place in the order of exchange, 0 first; it names the bucket's state.
    ``gradient``: shape (d,), this worker's gradient / workers; a method may overwrite it.
    ``shapes``: of the layers in it, in order, as they lie in memory; empty if the bucket is one piece.
    ``ratio``: of this bucket alone, where a plan gives one.
    """

    index: int
    gradient: Tensor
    shapes: tuple[tuple[int, ...], ...] = ()
    ratio: float | None = None

    @property
    def size(self) -> int:
        return self.gradient.numel()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Entries of each layer."""
        return tuple(map(math.prod, self.shapes)) or (self.size,)


@dataclass(frozen=True)
class Sum:
    """Request: the sum over workers of a tensor, dense or as (values, indices).

    Dense (``indices`` is None): ``values`` has shape (n,) and is overwritten by the sum.
    Sparse: ``values`` and int32 or int64 ``indices`` have shape (k,), k may differ between workers, indices
    are unique; the sum is written to ``out``, shape (d,). The answer is the tensor written.

    With ``chosen``, int64 of shape (1,), k is the same on all workers, and no host needs to know how many entries there
    are: the first ``chosen``, or all if more were chosen than find room; the others are zeros, at any index. Over
    collectives ``chosen`` becomes the largest of all workers.
    """

    values: Tensor
    indices: Tensor | None = None
    out: Tensor | None = None
    chosen: Tensor | None = None

    @property
    def entries(self) -> int | Tensor:
        """How many entries of the gradient are sent; a tensor of shape (1,) where the host does not know."""
        return self.values.numel() if self.chosen is None else self.chosen.clamp(max=self.values.numel())


@dataclass(frozen=True)
class Max:
    """Request: the elementwise maximum over workers of ``values``, shape (n,), which is overwritten by it."""

    values: Tensor


@dataclass(frozen=True)
class Gather:
    """Request: every worker's tensor, in rank order; any dtype, shape (n,), n may differ between workers.

    ``entries``: how many entries of the gradient it stands for, for the density; its length if not given.
    """

    tensor: Tensor
    entries: int | None = None


# A Round (dlgs_bench.comm.collectives) is a request too: messages between peers, answered with {peer: tensor}.
Request = Sum | Max | Gather | PeerExchange


class Method:
    """Base of all methods; a subclass is a dataclass whose fields are its parameters.

    What the class says to the harness:
    ``title``: what tables and figures call it; a class without one goes by its file's name.
    ``scope``: how the gradient is cut: one bucket per "model", per "layer", per group of the "plan",
    or layers merged up to a fixed "size".
    ``ratios_from_plan``: a plan gives each bucket a ratio of its own.
    ``sum_kind``: "dense" or "sparse" if the exchange is one such Sum, dense over the whole bucket or written to
    it, and its answer is returned untouched: what a parameter server can answer. None otherwise.
    ``cost_depends_on_shapes``: what it costs follows from the shapes of a bucket's layers; it is then calibrated on
    the model's own.
    ``elementwise``: an entry of the aggregate follows from the workers' entries in its place, in this step alone, so
    the entries of a bucket may lie in another order each time.
    ``baseline``: other methods are compared with it, so it is timed with several ways of merging layers, and the
    fastest counts.
    ``owns_momentum``: it applies momentum itself; the optimizer's is then off.
    ``decay_joins_gradient``: weight decay is added to the gradient before the exchange, and the optimizer's is off, so
    that the method's momentum amplifies it as SGD's momentum would.
    ``state``: the names of the fields that a resumed run needs. Each class names its own, its bases' are added.

    What the class promises; ``tests/test_methods.py`` holds it to these laws:
    ``exact_when``: parameters with which the first exchange returns the dense mean; {}: it always does, in every
    exchange. Such a method compresses nothing, so its copies are not counted as sparsification.
    ``conserves_mass``: sent + residual == gradient + old residual, to the "bits", to "rounding", or "at most". A class
    with error feedback says it, or ``conserves_mass = None`` if it keeps something else.
    ``conserves_when``: parameters with which it does; {}: it always does.
    ``unbiased_when``: parameters with which the mean over many draws is the dense mean; {}: it always is.
    ``relative_error``: with one worker, |aggregate - gradient| is always at most this part of |gradient| (2-norms),
    for gradients whose largest magnitude is 1.
    ``keeps_signs``: with one worker, no entry of the aggregate has the opposite sign of its gradient, and their inner
    product is positive. For biased methods without error feedback, such as signSGD; a zero may become any entry.
    """

    title: ClassVar[str]
    scope: ClassVar[Literal["model", "layer", "plan", "size"]] = "layer"
    ratios_from_plan: ClassVar[bool] = False
    sum_kind: ClassVar[Literal["dense", "sparse"] | None] = None
    cost_depends_on_shapes: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    baseline: ClassVar[bool] = False
    owns_momentum: ClassVar[bool] = False
    decay_joins_gradient: ClassVar[bool] = False
    state: ClassVar[tuple[str, ...]] = ()

    exact_when: ClassVar[dict[str, Any] | None] = None
    conserves_mass: ClassVar[Literal["bits", "rounding", "at most"] | None] = None
    conserves_when: ClassVar[dict[str, Any]] = {}
    unbiased_when: ClassVar[dict[str, Any] | None] = None
    relative_error: ClassVar[float | None] = None
    keeps_signs: ClassVar[bool] = False

    @property
    def uncompressed(self) -> bool:
        """Whether it sends the gradient as it is: always exact, and what others are compared with."""
        return self.exact_when == {} and self.baseline

    @property
    def cycle(self) -> int:
        """The method's behaviour depends on the step only through (step - 1) mod cycle."""
        return 1

    def phase(self, step: int) -> str:
        """Name of what is done at ``step`` (1, 2, ...); timing tells phases apart."""
        return "step"

    def exchanges_at(self, step: int) -> bool:
        """Whether anything is exchanged at ``step`` (1, 2, ...)."""
        return True

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        """How many requests the exchange of this bucket makes: neither more nor fewer.

        Engines pair calls by their order, so every worker must know it in advance, and give the same number.
        """
        return 1

    def exchange(self, bucket: Bucket, context: StepContext) -> Generator[Request, Any, Tensor]:
        """Yield requests, return the aggregate: shape (d,), the same bits on every worker."""
        raise NotImplementedError

    def warm_start(self, bucket: Bucket) -> None:
        """Put the state where long training would have it, given one gradient (for timing)."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        return {name: getattr(self, name) for name in self._state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; ValueError unless it is a state of this method."""
        if set(state) != set(self._state()):
            raise ValueError(f"{type(self).__name__} keeps {sorted(self._state())}, the state has {sorted(state)}")
        for name, value in state.items():
            setattr(self, name, value)

    def _state(self) -> list[str]:
        return [name for base in type(self).__mro__ for name in vars(base).get("state", ())]
