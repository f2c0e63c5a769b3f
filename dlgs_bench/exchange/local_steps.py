"""Local steps: what crosses the network is how far a worker's weights went in many steps, not a step's gradient."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import Tensor

from dlgs_bench.exchange.method import Method


@dataclass
class LocalSteps(Method):
    """Every worker makes ``local_steps`` steps of the optimizer with its own gradients, then all exchange.

    In such an exchange ``bucket.gradient`` holds delta / workers, delta = shared weights - own weights, and what the
    exchange returns is subtracted from the shared weights: the same step on every worker. What a method with local
    steps keeps in residuals and momentum is therefore in units of weights. ``shared``: by bucket, the weights after the
    last exchange; empty where no worker has made a step since.
    """

    scope = "model"  # all buckets are ready at once, after the optimizer's step
    state: ClassVar[tuple[str, ...]] = ("shared",)

    local_steps: Annotated[int, ">= 1"] = field(default=30, kw_only=True)
    shared: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def cycle(self) -> int:
        return self.local_steps

    def phase(self, step: int) -> str:
        return "exchange" if self.exchanges_at(step) else "local"

    def exchanges_at(self, step: int) -> bool:
        return step % self.local_steps == 0
