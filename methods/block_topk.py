"""Block-wise Top-K: whole blocks of the gradient, those of the largest norm."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.exchange import ErrorFeedback, Gather, Max, Sum
from harness.exchange.selection.by_torch import refuse_nan


@dataclass
class BlockTopK(ErrorFeedback):
    """A bucket is cut into blocks of ``block`` entries, of which the part ``ratio`` is sent whole (the sparsifier that
    goes with OmniReduce: Fei et al., SIGCOMM 2021). What is not sent stays in the residual.

    ``over="gather"``: every worker gathers all workers' blocks and their numbers. ``"union"``: the maximum of the
    workers' bitmaps says which blocks anybody sends, and a dense sum adds up those. Where dense sums are added in rank
    order, both end with the same bits.
    """

    title = "block-wise Top-K"
    scope = "size"
    conserves_mass = "bits"
    exact_when = {"ratio": 1.0}  # noqa: RUF012 - a constant, read by tests

    ratio: float
    block: Annotated[int, ">= 1"] = 256
    over: Literal["gather", "union"] = "gather"

    def rounds(self, bucket, at):
        return 2 if self.over == "union" else 1

    def exchange(self, bucket, at):
        acc = self.accumulate(bucket)
        chosen = self.largest(acc)
        places = self.places(chosen, bucket.size)
        values = acc[places]
        acc[places] = 0
        if self.over == "union":
            return (yield from self._by_union(bucket, chosen, places, values))
        message = torch.cat([chosen.to(torch.int32), values.view(torch.int32)])
        everyones = yield Gather(message, entries=values.numel())
        total = bucket.gradient.zero_()
        for message in everyones:
            numbers, bits = message.split([len(chosen), message.numel() - len(chosen)])
            total.index_add_(0, self.places(numbers.long(), bucket.size), bits.view(torch.float32))
        return total

    def _by_union(self, bucket, chosen: Tensor, places: Tensor, values: Tensor):
        bitmap = values.new_zeros(-(-bucket.size // self.block)).index_fill_(0, chosen, 1)
        union = (yield Max(bitmap)).nonzero().view(-1)
        total, summed = bucket.gradient.zero_(), self.places(union, bucket.size)
        total[places] = values
        total[summed] = yield Sum(total[summed])
        return total

    def largest(self, acc: Tensor) -> Tensor:
        """The numbers, int64 and rising, of the blocks of ``acc``, shape (d,), that are sent: at least one."""
        blocks = F.pad(acc, (0, -len(acc) % self.block)).view(-1, self.block)
        # The small term undoes the rounding of, say, 0.29 * 100.
        norms, chosen = blocks.norm(dim=1).topk(max(1, int(self.ratio * len(blocks) + 1e-6)))
        refuse_nan(norms)
        return chosen.sort().values

    def places(self, numbers: Tensor, size: int) -> Tensor:
        """The indices of the entries of these blocks, block by block, in a bucket of ``size``."""
        found = (numbers[:, None] * self.block + torch.arange(self.block, device=numbers.device)).view(-1)
        return found[found < size]
