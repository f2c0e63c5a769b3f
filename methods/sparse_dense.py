"""Sparse and dense steps: T sparse steps are followed by one dense step, which sends the residual, too."""

from dataclasses import dataclass
from typing import Annotated

import torch

from dlgs_bench.exchange import Bucket, Requests, Sparsifier, StepContext, Sum, Threshold, TopK


@dataclass
class SparseDense(Sparsifier):
    """Alternate sparse and dense steps (after a patent of Alibaba; T is a parameter here).

    A sparse step sends the k largest entries of gradient + residual of each layer, and keeps the others. A dense step
    sends all entries, so the residual is then zero. If ``threshold`` is above 0, a sparse step sends the entries whose
    magnitude is strictly above it instead. ``threshold`` is in units of a worker's gradient. ``ratio`` then has no
    effect on a CPU. On a GPU it limits messages: the first one has space for 2.5 k entries, and a later one for 1.25
    times the larger of k and the last count. Entries that do not fit are sent later.

    If T is larger than the number of steps, all steps are sparse: this is a Top-K of each layer with error feedback.
    Timing runs measure the first sparse steps after a dense step. With a threshold, later steps send more entries.
    """

    title = "sparse and dense"
    sum_kind = None  # a server's messages would be sparse in some steps and dense in others
    exact_when = {"sparse_steps": 0}  # noqa: RUF012 - a constant, read by tests

    sparse_steps: Annotated[int, ">= 0"] = 7  # T
    threshold: Annotated[float, ">= 0"] = 0.0

    @property
    def cycle(self) -> int:
        return self.sparse_steps + 1

    def phase(self, step: int) -> str:
        return "sparse" if step % self.cycle else "dense"

    def rule(self, bucket: Bucket, context: StepContext) -> TopK | Threshold:
        if not self.threshold:
            return TopK(self.k(bucket))
        bounds = torch.tensor([self.threshold / context.workers, torch.inf], dtype=torch.float32)
        above = torch.nextafter(*bounds)  # the smallest float32 above the threshold
        return Threshold(above.item())

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        if self.phase(context.step) == "sparse":
            return (yield from super().exchange(bucket, context))
        residual = self.residual(bucket)
        total = bucket.gradient.add_(residual)
        residual.zero_()
        return (yield Sum(total))

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        """A cycle begins without a residual."""
        self.residual(bucket).zero_()
