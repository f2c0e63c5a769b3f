"""Hard threshold: every entry whose magnitude reaches a constant threshold is sent."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from dlgs_bench.exchange import Bucket, ErrorFeedback, Requests, Selects, StepContext, Sum, Threshold


@dataclass
class HardThreshold(ErrorFeedback, Selects):
    """Hard-threshold sparsification (Sahu et al., Rethinking Gradient Sparsification as Total Error Minimization,
    NeurIPS 2021).

    ``threshold`` is in units of one worker's gradient and never changes, so the number of sent entries varies from step
    to step. Among all methods that send the same number of entries in the whole training, it minimises the sum of the
    squared errors of all steps.

    The authors' analysis compares lr g + error with the threshold. Here it is g + residual, as in their code for
    networks. The two differ when the learning rate drops: lr g shrinks, and fewer entries reach the threshold.
    """

    title = "hard threshold"
    scope = "size"
    sum_kind = "sparse"
    conserves_mass = "bits"
    exact_when = {"threshold": 0.0}  # noqa: RUF012 - a constant, read by tests

    threshold: Annotated[float, ">= 0"] = 0.01

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        rule = Threshold(self.threshold / context.workers)
        values, indices = self.selector.take(self.residual(bucket), rule, bucket.gradient)
        return (yield Sum(values, indices, out=bucket.gradient))

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        def send(corrected: Tensor, drawn: Tensor, step: int) -> None:
            self.selector.take(corrected, Threshold(self.threshold / workers))

        self.simulate(bucket, send)
