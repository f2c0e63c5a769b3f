"""RegTop-k: a Top-K that ranks entries lower if the other workers cancelled them in the last step."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Requests, Sparsifier, StepContext


@dataclass
class RegTopK(Sparsifier):
    """Regularised Top-K (Bereyhi, Liang, Boudreau, Afana, Novel Gradient Sparsification Algorithm via Bayesian
    Inference, MLSP 2024).

    For each entry, let a be gradient + residual, a' the value that this worker sent in the last step, and g' the
    aggregate of the last step. Entries are ranked by |a| tanh(|1 + (g' - a') / a| / mu) if they were sent in the last
    step, and by |a| otherwise. An entry that the others cancelled (g' = 0) and that has not changed ranks last. The
    default of mu is not from the paper.
    """

    title = "RegTop-k"
    scope = "model"
    sum_kind = None  # the next step's choice needs the aggregate
    state = ("last",)

    mu: Annotated[float, "> 0"] = 0.5
    # By bucket: the indices sent in the last step, and aggregate - sent value at these indices.
    last: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def select(self, corrected: Tensor, bucket: Bucket, context: StepContext) -> Tensor:
        score = corrected.abs()
        if bucket.index in self.last:
            indices, others = self.last[bucket.index]
            own = corrected[indices]
            change = (own + others).abs() / own.abs().clamp(min=torch.finfo(own.dtype).tiny)
            score[indices] *= torch.tanh(change / self.mu)
        chosen = score.topk(self.k(bucket), sorted=False).indices
        self.last[bucket.index] = chosen, -corrected[chosen]
        return chosen

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        aggregate = yield from super().exchange(bucket, context)
        self.last[bucket.index][1].add_(aggregate[self.last[bucket.index][0]])
        return aggregate
