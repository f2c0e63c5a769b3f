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
    of indices and a dense sum of about k values are enough. All workers have the same threshold. It starts at the
    largest of the k-th magnitudes of the parts, where k is the k of a part. After each step it is multiplied by
    1 + ``gain`` (count / k - 1), with the count and the k of the whole bucket. It starts again after a step in which no
    worker chose an entry. This control rule is not from the paper.
    """

    title = "MiCRO"
    scope = "size"
    link_growth = "(N - 1) / N"
    conserves_mass = "bits"
    state = ("common_thresholds",)

    gain: Annotated[float, "> 0", "< 1"] = 0.1  # with 1, a threshold that nothing reaches would become 0
    common_thresholds: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected = self.accumulate(bucket)
        part = (context.rank + context.step) % context.workers
        start, stop = (bucket.size * i // context.workers for i in (part, part + 1))
        own, h = corrected[start:stop], self.common_thresholds.get(bucket.index, 0.0)
        if h:
            received = yield Gather(self._chosen(own, h) + start, entries=0)
        else:  # a worker's message begins with its k-th magnitude
            first = self.selector.kth_magnitude(own, self.k(bucket, len(own))) if len(own) else 0.0
            message = torch.cat([own.new_tensor([first]).view(torch.int32), self._chosen(own, first) + start])
            messages = yield Gather(message, entries=0)
            h = max(message[:1].view(torch.float32).item() for message in messages)
            received = [message[1:] for message in messages]
        chosen = torch.cat(received).long()
        change = self.gain * (min(len(chosen) / self.k(bucket), MOST) - 1)
        # 0 after an empty choice, which all workers see: otherwise h would fall without end while gradients are 0.
        self.common_thresholds[bucket.index] = h * (1 + change) if len(chosen) else 0.0
        values = corrected[chosen]
        corrected.index_fill_(0, chosen, 0)
        total = yield Sum(values)
        return bucket.gradient.zero_().index_copy_(0, chosen, total)

    def _chosen(self, part: Tensor, h: float) -> Tensor:
        """The indices, int32, of the entries of ``part`` whose magnitude is at least h, and not 0."""
        if not len(part):
            return torch.empty(0, dtype=torch.int32, device=part.device)
        return indices_at_least(part, part.new_tensor([h]), (len(part),)).to(torch.int32)
