"""Error feedback and momentum: what a method may keep of earlier steps, whatever it sends."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from dlgs_bench.exchange.method import Bucket, Method


@dataclass
class ErrorFeedback(Method):
    """What was not sent is added to the next gradient (paper, Algorithm 1).

    Residuals are in units of the gradient / workers, as ``bucket.gradient`` is. ``error_feedback=False`` drops
    what was not sent: the baseline that shows what the residual is for.
    """

    state: ClassVar[tuple[str, ...]] = ("residuals",)

    error_feedback: bool = field(default=True, kw_only=True)
    residuals: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def residual(self, bucket: Bucket) -> Tensor:
        """What earlier steps left, shape (d,), in memory that the method keeps: what it leaves there stays."""
        if bucket.index not in self.residuals:
            self.residuals[bucket.index] = torch.zeros_like(bucket.gradient)
        kept = self.residuals[bucket.index]
        return kept if self.error_feedback else kept.zero_()

    def accumulate(self, bucket: Bucket) -> Tensor:
        """gradient + residual, shape (d,), in the residual's memory: subtract what is sent from it."""
        return self.residual(bucket).add_(bucket.gradient)


@dataclass
class Momentum(Method):
    """The method applies momentum before it compresses, so the optimizer applies none."""

    state: ClassVar[tuple[str, ...]] = ("velocities",)
    owns_momentum = True
    decay_joins_gradient = True

    momentum: Annotated[float, ">= 0"] = field(default=0.9, kw_only=True)
    velocities: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def velocity(self, bucket: Bucket) -> Tensor:
        """momentum * old velocity + gradient, shape (d,), in memory that the method keeps."""
        if bucket.index not in self.velocities:
            self.velocities[bucket.index] = torch.zeros_like(bucket.gradient)
        return self.velocities[bucket.index].mul_(self.momentum).add_(bucket.gradient)
