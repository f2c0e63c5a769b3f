"""gTop-k: pairs of workers merge what they send and keep the k largest, up a tree; the root's k go to all."""

from dataclasses import dataclass

import torch

from dlgs_bench.exchange import Bucket, PeerExchange, Ratio, Selects, StepContext, TopK
from dlgs_bench.exchange.steps import added_up, put_back
from dlgs_bench.exchange.wire import Indices


@dataclass
class GTopK(Selects, Ratio):
    """Global Top-k (Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
    Bandwidth Networks, ICDCS 2019).

    The aggregate has at most k entries, however many workers there are. What a worker chose and the root did not
    returns to its residual. What a merge inside the tree drops of an entry that the root has is lost.
    """

    title = "gTop-k"
    scope = "model"
    conserves_mass = "at most"

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2 * len(_levels(context))

    def exchange(self, bucket: Bucket, context: StepContext):
        corrected, merged, k = self.residual(bucket), bucket.gradient, self.k(bucket)
        values, places = self.selector.take(corrected, TopK(k), merged)
        message = Indices.pack(values, places, bucket.size)
        for apart in _levels(context):
            received = yield _round(context, apart, message, up=True)
            for other in received.values():
                both = added_up([message, other], merged)
                largest, positions = self.selector.take(both, TopK(k))
                message = Indices.pack(largest, positions, bucket.size)
        for apart in reversed(_levels(context)):
            received = yield _round(context, apart, message, up=False)
            message = next(iter(received.values()), message)
        root, chosen = message[:k].view(torch.float32), message[k:]
        put_back(corrected, values, places, chosen[root != 0])  # a zero only fills the message up
        return added_up([message], merged)


def _levels(context: StepContext) -> list[int]:
    """How far apart the partners of each level are; there is one level at least, as every exchange asks something."""
    return [1 << level for level in range(max(1, (context.workers - 1).bit_length()))]


def _round(context: StepContext, apart: int, message: torch.Tensor, up: bool) -> PeerExchange:
    """Of each pair, the rank that the distance divides an odd number of times sends up, and receives down."""
    lower = context.rank % (2 * apart) == 0
    partner = context.rank + apart if lower else context.rank - apart
    if context.rank % apart or partner >= context.workers:
        return PeerExchange(dtype=message.dtype)
    if lower is up:
        return PeerExchange(receives={partner: len(message)}, dtype=message.dtype)
    return PeerExchange({partner: message}, dtype=message.dtype, entries=len(message) // 2)
