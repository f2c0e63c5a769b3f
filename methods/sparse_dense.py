"""Alternating sparse and dense: T sparse steps, then a dense one that sends all that was left."""

from dataclasses import dataclass
from typing import Annotated

import torch

from dlgs_bench.exchange import Sparsifier, Sum, Threshold, TopK


@dataclass
class SparseDense(Sparsifier):
    """A sparse step sends of each layer the k largest entries of gradient + residual, and keeps the others; a dense
    step sends all of it, so that nothing is left (after a patent of Alibaba; T is a parameter here).

    ``threshold``: if above 0, a sparse step sends the entries whose magnitude is strictly above it instead, and
    ``ratio`` decides nothing. A T beyond the last step is Top-K with error feedback.
    """

    title = "sparse and dense"
    sum_kind = None  # a server's messages would change their form from step to step
    exact_when = {"sparse_steps": 0}  # noqa: RUF012 - a constant, read by tests

    sparse_steps: Annotated[int, ">= 0"] = 7  # T
    threshold: Annotated[float, ">= 0"] = 0.0

    @property
    def cycle(self) -> int:
        return self.sparse_steps + 1

    def phase(self, step):
        return "sparse" if step % self.cycle else "dense"

    def rule(self, bucket, context):
        if not self.threshold:
            return TopK(self.k(bucket))
        bounds = torch.tensor([self.threshold, torch.inf], dtype=torch.float32)
        above = torch.nextafter(*bounds)  # the next float32
        return Threshold(above.item())

    def exchange(self, bucket, context):
        if self.phase(context.step) == "sparse":
            return (yield from super().exchange(bucket, context))
        residual = self.residual(bucket)
        total = bucket.gradient.add_(residual)
        residual.zero_()
        return (yield Sum(total))

    def warm_start(self, bucket):
        """A cycle begins without a residual."""
        self.residual(bucket).zero_()
