"""RegTop-k: Top-K that passes over entries which the other workers cancelled in the last step."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Sparsifier, StepContext


@dataclass
class RegTopK(Sparsifier):
    """Regularised Top-K (Bereyhi, Liang, Boudreau, Afana, Novel Gradient Sparsification Algorithm via Bayesian
    Inference, MLSP 2024).

    Let a be gradient + residual, a' what this worker sent of an entry in the last step, and g' that entry's aggregate.
    Entries are ranked by |a| tanh(|1 + (g' - a') / a| / mu) if they were sent, and by |a| if they were not. An entry
    that the others cancelled (g' = 0) and that has not changed ranks last. The value of mu is ours.
    """

    title = "RegTop-k"
    scope = "layer"
    sum_kind = None  # the next step's choice needs the aggregate
    state = ("last",)

    mu: Annotated[float, "> 0"] = 0.5
    # By bucket: the indices sent in the last step, and aggregate - value sent there.
    last: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

    def select(self, corrected, bucket, context):
        score = corrected.abs()
        if bucket.index in self.last:
            indices, others = self.last[bucket.index]
            own = corrected[indices]
            change = (own + others).abs() / own.abs().clamp(min=torch.finfo(own.dtype).tiny)
            score[indices] *= torch.tanh(change / self.mu)
        chosen = score.topk(self.k(bucket), sorted=False).indices
        self.last[bucket.index] = chosen, -corrected[chosen]
        return chosen

    def exchange(self, bucket: Bucket, context: StepContext):
        aggregate = yield from super().exchange(bucket, context)
        self.last[bucket.index][1].add_(aggregate[self.last[bucket.index][0]])
        return aggregate
