"""Block-wise Top-K: the blocks of the gradient with the largest norms are sent whole."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Max, Ratio, Requests, StepContext, Sum
from dlgs_bench.exchange.quantisation import norms
from dlgs_bench.exchange.selection.torch_backend import refuse_nan


@dataclass
class BlockTopK(Ratio):
    """Block-wise Top-K, the sparsifier of OmniReduce (Fei et al., SIGCOMM 2021).

    A bucket is split into blocks of ``block`` entries. The fraction ``ratio`` of the blocks is sent whole; the other
    blocks stay in the residual. ``over`` selects how blocks are summed:

    - ``"gather"``: every worker gathers all workers' blocks and the indices of the blocks.
    - ``"union"``: the maximum of the workers' bitmaps gives the blocks that any worker sends; a dense sum adds them.
    - ``"sum"``: a dense sum of the whole bucket, with zeros in blocks that are not sent, for a collective that does not
      send blocks of zeros.

    If dense sums are added in rank order, all three give the same bits.
    """

    title = "block-wise Top-K"
    scope = "size"
    conserves_mass = "bits"

    block: Annotated[int, ">= 1"] = 256
    over: Literal["gather", "union", "sum"] = "gather"

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2 if self.over == "union" else 1

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected, total = self.accumulate(bucket), bucket.gradient
        chosen = self.largest(corrected, bucket)
        indices = self.indices(chosen, bucket.size)
        values = corrected[indices]
        corrected[indices] = 0
        if self.over == "gather":
            message = torch.cat([chosen.to(torch.int32), values.view(torch.int32)])
            received = yield Gather(message, entries=values.numel())
            total.zero_()
            for message in received:
                numbers, bits = message.tensor_split([len(chosen)])
                total.index_add_(0, self.indices(numbers.long(), bucket.size), bits.view(torch.float32))
            return total
        total.zero_()[indices] = values
        if self.over == "sum":
            return (yield Sum(total))
        bitmap = values.new_zeros(-(-bucket.size // self.block)).index_fill_(0, chosen, 1)
        summed = self.indices((yield Max(bitmap)).nonzero().view(-1), bucket.size)
        total[summed] = yield Sum(total[summed])
        return total

    def largest(self, corrected: Tensor, bucket: Bucket) -> Tensor:
        """The sorted numbers, int64, of the blocks of ``corrected``, shape (d,), that are sent; at least one."""
        of_blocks = norms(corrected, self.block, 2)
        largest, chosen = of_blocks.topk(self.k(bucket, len(of_blocks)))
        refuse_nan(largest)
        return chosen.sort().values

    def indices(self, numbers: Tensor, size: int) -> Tensor:
        """The indices of the entries in these blocks, block by block, in a bucket of ``size`` entries."""
        indices = (numbers[:, None] * self.block + torch.arange(min(self.block, size), device=numbers.device)).view(-1)
        return indices[indices < size]
