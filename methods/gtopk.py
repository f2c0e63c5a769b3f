"""gTop-k: workers merge their k largest entries pairwise, up a tree; the root sends the final k entries to all."""

from dataclasses import dataclass

import torch

from dlgs_bench.exchange import Bucket, PeerExchange, Ratio, Requests, Selects, StepContext, TopK
from dlgs_bench.exchange.steps import restore_unsent, sum_messages
from dlgs_bench.exchange.wire import Indices


@dataclass
class GTopK(Selects, Ratio):
    """Global Top-k (Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
    Bandwidth Networks, ICDCS 2019).

    The aggregate has at most k entries for any number of workers. An entry that a worker chose and that is not in the
    root's result returns to the residual. If an entry is in the root's result, but a merge in the tree dropped a part
    of its sum, this part is lost.
    """

    title = "gTop-k"
    scope = "model"
    link_growth = "log2 N"
    conserves_mass = "at most"

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2 * len(_levels(context))

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected, merged, k = self.residual(bucket), bucket.gradient, self.k(bucket)
        values, indices = self.selector.take(corrected, TopK(k), merged)
        message = Indices.pack(values, indices, bucket.size)
        for distance in _levels(context):
            received = yield _round(context, distance, message, up=True)
            for other in received.values():
                both = sum_messages([message, other], merged)
                largest, positions = self.selector.take(both, TopK(k))
                message = Indices.pack(largest, positions, bucket.size)
        for distance in reversed(_levels(context)):
            received = yield _round(context, distance, message, up=False)
            message = next(iter(received.values()), message)
        root, chosen = message[:k].view(torch.float32), message[k:]
        restore_unsent(corrected, values, indices, chosen[root != 0])  # zeros only pad the message
        return sum_messages([message], merged)


def _levels(context: StepContext) -> list[int]:
    """The distance between the ranks of a pair at each level. There is at least one level, since an exchange makes at
    least one request."""
    return [1 << level for level in range(max(1, (context.workers - 1).bit_length()))]


def _round(context: StepContext, distance: int, message: torch.Tensor, up: bool) -> PeerExchange:
    """This rank's part in one level. Going up, the higher rank of each pair sends; going down, the lower rank sends."""
    lower = context.rank % (2 * distance) == 0
    partner = context.rank + distance if lower else context.rank - distance
    if context.rank % distance or partner >= context.workers:
        return PeerExchange(dtype=message.dtype)
    if lower is up:
        return PeerExchange(receives={partner: len(message)}, dtype=message.dtype)
    return PeerExchange({partner: message}, dtype=message.dtype, entries=len(message) // 2)
