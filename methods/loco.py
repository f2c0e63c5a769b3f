"""LoCo: the two-step quantised all-reduce; an average of past rounding errors is added before each rounding."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor

from dlgs_bench.exchange import Bucket, Requests, StepContext
from dlgs_bench.exchange.steps import state_for

from .quantised import Quantised


@dataclass
class LoCo(Quantised):
    """Low-bit communication (Xie et al., LoCo, arXiv 2407.04480, 2024), with DeepSpeed's defaults.

    h = vector + e is rounded, and then e = average e + (1 - average) (h - rounded h). This is done for the parts that a
    worker sends, and for the sum that it sends to all. Errors are reset every ``reset_every`` steps. DeepSpeed keeps
    errors in 8 bits; here they are float32.
    """

    title = "LoCo"
    relative_error = None  # the aggregate contains errors of earlier gradients
    conserves_mass = "rounding"
    conserves_when = {"average": 0.0}  # noqa: RUF012 - a constant, read by tests
    summed_state = ("errors",)
    divided_state = ("sum_errors",)

    bits: Literal[4, 8] = 4
    average: Annotated[float, ">= 0", "<= 1"] = 0.8
    reset_every: Annotated[int, ">= 1"] = 1024
    errors: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    sum_errors: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def residual(self, bucket: Bucket) -> Tensor:
        """The averaged error of the parts that this worker sends, shape (d,)."""
        return state_for(self.errors, bucket.index, bucket.gradient)

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        if (context.step - 1) % self.reset_every == 0:
            self.errors.pop(bucket.index, None)
            self.sum_errors.pop(bucket.index, None)
        return (yield from super().exchange(bucket, context))

    def encoded_parts(self, parts: tuple[Tensor, ...], bucket: Bucket) -> Iterator[Tensor]:
        return map(self._corrected, parts, self.residual(bucket).tensor_split(len(parts)))

    def encoded_sum(self, total: Tensor, bucket: Bucket) -> Tensor:
        return self._corrected(total, state_for(self.sum_errors, bucket.index, total))

    def _corrected(self, vector: Tensor, error: Tensor) -> Tensor:
        wanted = vector + error
        message = self._encoded(wanted)
        lost = self._subtracted(message, wanted)
        error.mul_(self.average).add_(lost, alpha=1 - self.average)
        return message
