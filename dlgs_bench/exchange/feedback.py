"""Error feedback and momentum: base classes for methods that keep state from earlier steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import Tensor

from dlgs_bench.exchange.method import Bucket, Method
from dlgs_bench.exchange.stationary import simulated_residual
from dlgs_bench.exchange.steps import state_for


@dataclass
class ErrorFeedback(Method):
    """Error feedback: entries that were not sent are added to the next gradient (paper, Algorithm 1).

    Residuals are in units of gradient / workers, as ``bucket.gradient`` is. ``error_feedback=False`` drops the entries
    that were not sent; this baseline shows the effect of the residual.
    """

    summed_state: ClassVar[tuple[str, ...]] = ("residuals",)

    error_feedback: bool = field(default=True, kw_only=True)
    residuals: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def residual(self, bucket: Bucket) -> Tensor:
        """The residual of a bucket, shape (d,). Write the next residual to this tensor, in place."""
        residual = state_for(self.residuals, bucket.index, bucket.gradient)
        return residual if self.error_feedback else residual.zero_()

    def accumulate(self, bucket: Bucket) -> Tensor:
        """Add the gradient to the residual, shape (d,), and return the residual. Subtract from it what is sent."""
        return self.residual(bucket).add_(bucket.gradient)

    def simulate(self, bucket: Bucket, send: Callable[[Tensor, Tensor, int], object]) -> None:
        """Draw the residual of a bucket by ``simulated_residual``; nothing without error feedback."""
        if self.error_feedback:
            self.residuals[bucket.index] = simulated_residual(bucket.gradient, bucket.sizes, send)


@dataclass
class Momentum(Method):
    """The method applies momentum before it compresses, so the optimizer applies none."""

    summed_state: ClassVar[tuple[str, ...]] = ("velocities",)
    owns_momentum = True
    decay_joins_gradient = True

    momentum: Annotated[float, ">= 0", "< 1"] = field(default=0.9, kw_only=True)
    velocities: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def velocity(self, bucket: Bucket) -> Tensor:
        """Update the velocity of a bucket, shape (d,), and return it: momentum * old velocity + gradient."""
        velocity = state_for(self.velocities, bucket.index, bucket.gradient)
        return velocity.mul_(self.momentum).add_(bucket.gradient)
