"""CLT-k: workers take turns in selecting their k largest entries; all workers send their values at these indices."""

from dataclasses import dataclass

import torch

from dlgs_bench.exchange import Bucket, Gather, Ratio, Requests, Selects, StepContext, Sum, TopK


@dataclass
class CLTk(Selects, Ratio):
    """Cyclic local Top-K (Chen et al., ScaleCom, NeurIPS 2020), without ScaleCom's low-pass filter of the residual.
    The Top-K is exact here; ScaleCom sorts within chunks, which is approximate.

    In step t, worker t mod N, of N workers, sends the indices of its Top-K. A dense sum of k values follows, so the
    bytes per worker do not grow with the number of workers.
    """

    title = "CLT-k"
    scope = "layer"
    conserves_mass = "bits"

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected = self.accumulate(bucket)
        if context.step % context.workers == context.rank:
            values, mine = self.selector.take(corrected, TopK(self.k(bucket)))
            corrected.index_copy_(0, mine.long(), values)
        else:
            mine = torch.empty(0, dtype=torch.int32, device=corrected.device)
        chosen = torch.cat((yield Gather(mine.to(torch.int32), entries=0))).long()
        values = corrected[chosen]
        corrected.index_fill_(0, chosen, 0)
        total = yield Sum(values)
        return bucket.gradient.zero_().index_copy_(0, chosen, total)
