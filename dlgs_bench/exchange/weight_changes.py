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
    are therefore in units of weights. ``shared``: the weights after the last exchange, by bucket. A bucket is missing
    if its own weights equal the shared weights.

    Streaming (Douillard et al., Streaming DiLoCo, arXiv 2501.18512, 2025): the model is split into ``fragments`` of
    neighbouring layers with about equal numbers of entries; the authors prefer strided layers. Each fragment is
    exchanged every ``local_steps`` steps, and the fragments take turns. A worker adopts the new shared weights
    ``delay`` steps after the exchange. It keeps ``mixing`` * own weights and adds (1 - ``mixing``) * shared weights.
    Example: with local_steps=30, fragments=3 and delay=5, the first fragment is exchanged at steps 10, 40, 70, ... and
    adopted at steps 15, 45, 75, .... The result is the same as if the exchange took ``delay`` steps, but here each
    exchange ends before the next step starts.
    """

    scope = "model"  # all buckets are ready at once, after the optimizer's step
    equal_state: ClassVar[tuple[str, ...]] = ("shared",)

    local_steps: Annotated[int, ">= 1"] = field(default=30, kw_only=True)
    fragments: Annotated[int, ">= 1"] = field(default=1, kw_only=True)
    delay: Annotated[int, ">= 0"] = field(default=0, kw_only=True)
    mixing: Annotated[float, ">= 0", "< 1"] = field(default=0.0, kw_only=True)
    shared: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.delay >= self.local_steps:
            raise ValueError(f"delay: {self.delay} is not below local_steps={self.local_steps}; give a smaller delay")

    @property
    def cycle(self) -> int:
        return self.local_steps

    def phase(self, step: int) -> str:
        due = [str(fragment + 1) for fragment in range(self.fragments) if self.is_due(fragment, step)]
        if self.fragments == 1 or not due:
            return "exchange" if due else "local"
        return f"exchange {'+'.join(due)}"  # fragments differ in size, so each is timed

    def exchanges_at(self, step: int) -> bool:
        return any(self.is_due(fragment, step) for fragment in range(self.fragments))

    def acts_at(self, step: int) -> bool:
        """Whether weights are exchanged or adopted at ``step`` (1, 2, ...)."""
        return self.exchanges_at(step) or self.exchanges_at(step - self.delay)

    def is_due(self, fragment: int, step: int) -> bool:
        """Whether a fragment (0, 1, ...) is exchanged at ``step`` (1, 2, ...)."""
        first = (fragment + 1) * self.local_steps // self.fragments
        return step > 0 and (step - first) % self.local_steps == 0
