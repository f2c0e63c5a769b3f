"""MiCRO: each worker selects indices in its own part of the bucket; all workers send their values at all of them."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Ratio, Requests, Selects, StepContext, Sum
from dlgs_bench.exchange.magnitudes import indices_at_least

MOST = 4.0  # a count above this multiple of k raises the threshold only as much as this multiple


@dataclass
class MiCRO(Selects, Ratio):
    """Exclusive parts and a controlled threshold (Yoon, Oh, MiCRO, HiPC 2023, arXiv 2310.00967).

    The parts are equal, and rotate by one worker in each step. The indices of all workers are disjoint, so one gather
    of indices and a dense sum of about k values are enough. A worker's threshold starts at the k-th magnitude of its
    part. After each step it is multiplied by 1 + ``gain`` (count / k - 1), where k is the k of the part. This control
    rule is not from the paper.
    """

    title = "MiCRO"
    scope = "size"
    conserves_mass = "bits"
    state = ("thresholds",)

    gain: Annotated[float, "> 0"] = 0.1
    thresholds: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gain >= 1:  # a threshold that nothing reaches would become 0 or negative
            raise ValueError(f"gain: {self.gain!r} is not valid; give a number above 0 and below 1")

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected = self.accumulate(bucket)
        part = (context.rank + context.step) % context.workers
        start, stop = (bucket.size * i // context.workers for i in (part, part + 1))
        mine = self._select(corrected[start:stop], bucket) + start
        chosen = torch.cat((yield Gather(mine.to(torch.int32), entries=0))).long()
        values = corrected[chosen]
        corrected.index_fill_(0, chosen, 0)
        total = yield Sum(values)
        return bucket.gradient.zero_().index_copy_(0, chosen, total)

    def _select(self, part: Tensor, bucket: Bucket) -> Tensor:
        """The indices of the entries of ``part`` to send; their number adjusts the threshold."""
        if not len(part):
            return torch.empty(0, dtype=torch.int64, device=part.device)
        k = self.k(bucket, len(part))
        h = self.thresholds.get(bucket.index) or self.selector.kth_magnitude(part, k)
        chosen = indices_at_least(part, part.new_tensor([h]), (len(part),))
        self.thresholds[bucket.index] = h * (1 + self.gain * (min(len(chosen) / k, MOST) - 1))
        return chosen
