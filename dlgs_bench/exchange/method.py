"""The method contract: how a bucket of gradients becomes the average of all workers' gradients.

A method is a coroutine. It yields *requests*, which say what is to be combined, but not how. It is resumed with the
answer to each request, and returns the aggregate, which the optimizer applies. A transport
(``dlgs_bench.exchange.transport``) answers requests over a topology. The package measures time, counts bytes, and
overlaps exchanges with backward.

Gradients are already divided by the number of workers. So the *sum* that a method requests is the mean that SGD needs
(paper, eq. 1), and residuals are in the same units.

Example: ``return (yield Sum(bucket.gradient))`` is the whole ``exchange`` of the uncompressed method.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from dlgs_bench.buckets import Scope
from dlgs_bench.comm.collectives import PeerExchange
from dlgs_bench.topology import Growth

SumKind = Literal[None, "dense", "sparse"]


@dataclass(frozen=True)
class StepContext:
    """The step (1, 2, ...), this worker's rank, the number of workers, and the learning rate ``lr`` of this step."""

    step: int
    rank: int
    workers: int
    lr: float


@dataclass(frozen=True)
class Bucket:
    """A flat slice of the gradient that is exchanged in one piece.

    ``index``: its index in the order of exchange; a method keeps the state of a bucket under this index.
    ``gradient``: shape (d,), this worker's gradient / workers; a method may overwrite it.
    ``shapes``: the shapes of its layers in memory, in order; empty if the bucket is not made of layers.
    ``ratio``: the ratio of this bucket, if a plan gives one.
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
        """The number of entries of each layer."""
        return tuple(map(math.prod, self.shapes)) or (self.size,)


@dataclass(frozen=True)
class Sum:
    """Request: the sum over workers of a tensor, either dense or sparse.

    Dense (``indices`` is None): ``values``, shape (n,), is overwritten by the sum.
    Sparse: ``values`` and int32 or int64 ``indices`` have shape (k,). k may differ between workers; indices are unique.
    The sum is written to ``out``, shape (d,). The answer is the tensor that was written.

    With ``chosen``, an int64 tensor of shape (1,), the message has a fixed size: k is the same on all workers, and the
    host does not wait for the number of entries. The first ``chosen`` entries are sent, at most k; the others are zeros
    at any index. With collectives, ``chosen`` is overwritten by its maximum over workers.
    """

    values: Tensor
    indices: Tensor | None = None
    out: Tensor | None = None
    chosen: Tensor | None = None

    @property
    def entries(self) -> int | Tensor:
        """The number of gradient entries that are sent; a tensor of shape (1,) if only the device has the number."""
        return self.values.numel() if self.chosen is None else self.chosen.clamp(max=self.values.numel())


@dataclass(frozen=True)
class Max:
    """Request: the elementwise maximum over workers; it overwrites ``values``, shape (n,)."""

    values: Tensor


@dataclass(frozen=True)
class Gather:
    """Request: the tensors of all workers, in rank order. They have any dtype and shape (n,); n may differ.

    ``entries``: the number of gradient entries that ``tensor`` represents, by default its length. The reported density
    uses this number.
    """

    tensor: Tensor
    entries: int | None = None


# A PeerExchange is one round of messages between peers; the answer is {peer: tensor}.
Request = Sum | Max | Gather | PeerExchange
# An exchange yields requests, gets their answers, and returns the aggregate.
Requests = Generator[Request, Any, Tensor]


class Method:
    """Base of all methods. A subclass is a dataclass whose fields are the parameters of the method.

    Class attributes that the package uses:
    ``title``: the name in tables and figures; by default the name of the file.
    ``scope``: how the gradient is split into buckets: one bucket per "model", per "layer", per group of the "plan", or
    layers merged up to a fixed "size".
    ``ratios_from_plan``: whether a plan gives each bucket its own ratio.
    ``sum_kind``: how a parameter server can serve the method: "dense" if the exchange is one dense Sum over the bucket,
    "sparse" if it is one sparse Sum written to the bucket. Both return the answer unchanged. None otherwise.
    ``link_growth``: how the bytes of gathers and messages on the busiest link grow with the number N of workers: "N -
    1" if each worker sends the same to all others, "(N - 1) / N" if each worker handles one of N parts of a bucket,
    "log2 N" if workers exchange in pairs. Dense sums do not count.
    ``cost_depends_on_shapes``: whether the cost depends on the shapes of a bucket's layers. Such a method is calibrated
    on the layers of the model.
    ``elementwise``: whether an entry of the aggregate depends only on the workers' entries at this index in this step.
    Then the entries of a bucket may have another order in each step.
    ``baseline``: whether other methods are compared with it. A baseline is timed with several ways of merging layers,
    and the fastest one counts.
    ``rounds_to_16_bits``: whether the exchange does nothing else than round and sum. Hooks give such a method gradients
    as a GradScaler has scaled them, so that small entries do not round to 0; for all others they undo the scale.
    ``owns_momentum``: whether the method applies momentum itself; the optimizer's momentum is then off.
    ``decay_joins_gradient``: whether weight decay is added to the gradient before the exchange, and the optimizer's
    weight decay is off. The method's momentum then amplifies weight decay as SGD's momentum would.

    State that a resumed run needs: the names of fields, declared in one of four tuples. They differ in what becomes of
    a field if the run continues with another number of workers. The names of base classes are added.
    ``state``: the field returns to its initial value.
    ``summed_state``: {bucket index: tensor}; every worker gets an equal share of the sum over workers.
    ``divided_state``: {bucket index: tensor}; each worker has the state of its part of the bucket, as
    ``tensor_split(workers)`` cuts it. The bucket is cut into as many parts as there are workers now.
    ``equal_state``: the field is the same on all workers, so every worker gets a copy.

    Laws that a class declares; ``tests/test_methods.py`` checks them:
    ``exact_when``: parameters with which the first exchange returns the dense mean. {} means that every exchange
    returns it, with all parameters. Such a method compresses nothing, so its copies do not count as sparsification.
    ``conserves_mass``: how well sent + residual == gradient + old residual holds: to the "bits", to "rounding", or "at
    most". A class with error feedback must declare it, as None if its residual holds something else.
    ``conserves_when``: parameters with which ``conserves_mass`` holds; {} means all.
    ``unbiased_when``: parameters with which the mean over many draws is the dense mean; {} means all.
    ``relative_error``: with one worker, |aggregate - gradient| / |gradient| (2-norms) is at most this number, for
    gradients whose largest magnitude is 1.
    ``keeps_signs``: with one worker, no entry of the aggregate has the opposite sign of its gradient, and their inner
    product is positive. This is for biased methods without error feedback, such as signSGD; a zero may become any
    value.
    """

    title: ClassVar[str]
    scope: ClassVar[Scope] = "layer"
    ratios_from_plan: ClassVar[bool] = False
    sum_kind: ClassVar[SumKind] = None
    link_growth: ClassVar[Growth] = "N - 1"
    cost_depends_on_shapes: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    baseline: ClassVar[bool] = False
    rounds_to_16_bits: ClassVar[bool] = False
    owns_momentum: ClassVar[bool] = False
    decay_joins_gradient: ClassVar[bool] = False
    state: ClassVar[tuple[str, ...]] = ()
    summed_state: ClassVar[tuple[str, ...]] = ()
    divided_state: ClassVar[tuple[str, ...]] = ()
    equal_state: ClassVar[tuple[str, ...]] = ()

    exact_when: ClassVar[dict[str, Any] | None] = None
    conserves_mass: ClassVar[Literal["bits", "rounding", "at most"] | None] = None
    conserves_when: ClassVar[dict[str, Any]] = {}
    unbiased_when: ClassVar[dict[str, Any] | None] = None
    relative_error: ClassVar[float | None] = None
    keeps_signs: ClassVar[bool] = False

    @property
    def uncompressed(self) -> bool:
        """Whether the method sends the gradient unchanged: it is exact in every exchange, and a baseline."""
        return self.exact_when == {} and self.baseline

    @property
    def cycle(self) -> int:
        """The period of ``phase`` and ``exchanges_at``: they depend on the step only through (step - 1) mod cycle."""
        return 1

    def phase(self, step: int) -> str:
        """The name of the phase of ``step`` (1, 2, ...), such as "refresh"; phases are timed separately."""
        return "step"

    def exchanges_at(self, step: int) -> bool:
        """Whether anything is exchanged at ``step`` (1, 2, ...)."""
        return True

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        """The exact number of requests in the exchange of this bucket, the same on all workers.

        The driver needs it in advance, because engines pair calls by their order.
        """
        return 1

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        """Yield requests, and return the aggregate: shape (d,), with the same bits on all workers."""
        raise NotImplementedError

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        """Set the state to what it would be after long training; used before timing.

        ``bucket`` has one gradient, which is divided by the number of workers.
        """

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs."""
        return {name: getattr(self, name) for name in self.state_fields()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; ValueError unless it is a state of this method."""
        if set(state) != set(self.state_fields()):
            name, fields = type(self).__name__, sorted(self.state_fields())
            raise ValueError(f"{name}: state: {sorted(state)} is not {fields}; load a state of this method")
        for name, value in state.items():
            setattr(self, name, value)

    @classmethod
    def state_fields(cls, *kinds: str) -> list[str]:
        """The names in the declarations ``kinds``, such as "summed_state", of the class and its bases; all if none."""
        kinds = kinds or ("state", "summed_state", "divided_state", "equal_state")
        return [name for base in cls.__mro__ for kind in kinds for name in vars(base).get(kind, ())]
