"""SCAPE: one mask for all workers, selected a step ahead; each worker selects its part by its running mean."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Ratio, Requests, StepContext, Sum
from dlgs_bench.exchange.steps import state_for


@dataclass
class SCAPE(Ratio):
    """Delayed mask from first moments (Zheng, Chen, Xie, Zhang, SCAPE, arXiv 2607.01678, 2026).

    Worker i of N owns one N-th of a bucket, as if the optimizer was sharded. In each step it updates the first moment
    of its own gradient there, m = beta m + (1 - beta) g, and selects k / N entries. All workers gather these indices.
    In the next step, a dense sum adds k values at the gathered indices. The first step has no mask, so it sends k
    evenly spaced entries.

    Only the abstract was available to us. It names the first moments, the partitions, the synchronised mask and the
    delay of one step. The rest is our reading. The moment is of the owner's own gradient: the aggregate is 0 at entries
    that were not sent, so a moment of the aggregate would never select them. Error feedback is our addition, because
    otherwise entries with small moments are never sent. Entries are ranked by |m + residual|, which predicts the next
    gradient + residual. Only its owner chooses an entry. So an entry for which other workers alone have gradients, such
    as a row of an embedding, is almost never sent. The paper's optimizer, AdamS, is not part of the method here.
    """

    title = "SCAPE"
    scope = "size"
    link_growth = "(N - 1) / N"
    conserves_mass = "bits"
    state = ("moments",)
    equal_state = ("masks",)

    beta: Annotated[float, ">= 0", "< 1"] = 0.9
    moments: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    masks: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        own = bucket.gradient.tensor_split(context.workers)[context.rank]
        moment = state_for(self.moments, bucket.index, own).lerp_(own, 1 - self.beta)
        mask = self.masks[bucket.index] if bucket.index in self.masks else self._evenly_spaced(bucket)
        corrected = self.accumulate(bucket)
        values = corrected[mask]
        corrected.index_fill_(0, mask, 0)
        total = yield Sum(values)
        parts = self.residual(bucket).tensor_split(context.workers)
        first = sum(len(part) for part in parts[: context.rank])
        k = len(mask.tensor_split(context.workers)[context.rank])
        selected = first + (moment + parts[context.rank]).abs().topk(k).indices
        self.masks[bucket.index] = torch.cat((yield Gather(selected.to(torch.int32), entries=0))).long()
        return bucket.gradient.zero_().index_copy_(0, mask, total)

    def _evenly_spaced(self, bucket: Bucket) -> Tensor:
        k = self.k(bucket)
        return torch.arange(k, device=bucket.gradient.device) * bucket.size // k
