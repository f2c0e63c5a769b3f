"""DiLoCo: workers train locally; every ``local_steps`` steps an outer optimizer applies the mean change of weights."""

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from dlgs_bench.exchange import Bucket, LocalSteps, Requests, StepContext, Sum
from dlgs_bench.exchange.steps import state_for


@dataclass
class DiLoCo(LocalSteps):
    """Distributed low-communication training (Douillard et al., DiLoCo, arXiv 2311.08105, 2023, Algorithm 1).

    After ``local_steps`` steps of the inner optimizer, delta is the mean over workers of shared weights - own weights.
    SGD with Nesterov momentum uses it as a gradient: v = m v + delta; shared -= lr (delta + m v). Every inner optimizer
    keeps its momentum. The authors make 500 local steps; the default of 30 is from SparseLoCo.

    ``fragments``, ``delay`` and ``mixing`` are parameters of Streaming DiLoCo. Its authors send 4 bits per entry. This
    method sends float32.
    """

    title = "DiLoCo"
    exact_when = {"outer_lr": 1.0, "outer_momentum": 0.0}  # noqa: RUF012 - a constant, read by tests
    equal_state = ("velocities",)

    outer_lr: Annotated[float, "> 0"] = 0.7
    outer_momentum: Annotated[float, ">= 0", "< 1"] = 0.9
    velocities: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        delta = yield Sum(bucket.gradient)
        velocity = state_for(self.velocities, bucket.index, delta).mul_(self.outer_momentum).add_(delta)
        return delta.add_(velocity, alpha=self.outer_momentum).mul_(self.outer_lr)
