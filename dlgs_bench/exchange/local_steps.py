"""Local steps: workers exchange the change of their weights after many steps, instead of each step's gradient."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import Tensor

from dlgs_bench.exchange.method import Method


@dataclass
class LocalSteps(Method):
    """Base of methods in which every worker makes ``local_steps`` optimizer steps before all workers exchange.

    In an exchange, ``bucket.gradient`` holds delta / workers, where delta = shared weights - own weights. The result of
    the exchange is subtracted from the shared weights, which is the same step on every worker. Residuals and momentum
    are therefore in units of weights. ``shared``: the weights after the last exchange, by bucket; empty if no worker
    has made a step since.
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
