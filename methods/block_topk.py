"""Block-wise Top-K: whole blocks of the gradient, those of the largest norm."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Max, Ratio, Sum
from dlgs_bench.exchange.quantisation import norms
from dlgs_bench.exchange.selection.torch_backend import refuse_nan


@dataclass
class BlockTopK(Ratio):
    """A bucket is cut into blocks of ``block`` entries, of which the part ``ratio`` is sent whole (the sparsifier that
    goes with OmniReduce: Fei et al., SIGCOMM 2021). What is not sent stays in the residual.

    ``over="gather"``: every worker gathers all workers' blocks and their numbers. ``"union"``: the maximum of the
    workers' bitmaps says which blocks anybody sends, and a dense sum adds up those. ``"sum"``: the dense sum of the
    whole bucket with zeros in the place of what is not sent, for a collective that leaves out blocks of zeros. Where
    dense sums are added in rank order, all three end with the same bits.
    """

    title = "block-wise Top-K"
    scope = "size"
    conserves_mass = "bits"

    block: Annotated[int, ">= 1"] = 256
    over: Literal["gather", "union", "sum"] = "gather"

    def num_requests(self, bucket, context):
        return 2 if self.over == "union" else 1

    def exchange(self, bucket, context):
        corrected, total = self.accumulate(bucket), bucket.gradient
        chosen = self.largest(corrected, bucket)
        places = self.places(chosen, bucket.size)
        values = corrected[places]
        corrected[places] = 0
        if self.over == "gather":
            message = torch.cat([chosen.to(torch.int32), values.view(torch.int32)])
            received = yield Gather(message, entries=values.numel())
            total.zero_()
            for message in received:
                numbers, bits = message.tensor_split([len(chosen)])
                total.index_add_(0, self.places(numbers.long(), bucket.size), bits.view(torch.float32))
            return total
        total.zero_()[places] = values
        if self.over == "sum":
            return (yield Sum(total))
        bitmap = values.new_zeros(-(-bucket.size // self.block)).index_fill_(0, chosen, 1)
        summed = self.places((yield Max(bitmap)).nonzero().view(-1), bucket.size)
        total[summed] = yield Sum(total[summed])
        return total

    def largest(self, corrected: Tensor, bucket: Bucket) -> Tensor:
        """The numbers, int64 and rising, of the blocks of ``corrected``, shape (d,), that are sent: at least one."""
        of_blocks = norms(corrected, self.block, 2)
        largest, chosen = of_blocks.topk(self.k(bucket, len(of_blocks)))
        refuse_nan(largest)
        return chosen.sort().values

    def places(self, numbers: Tensor, size: int) -> Tensor:
        """The indices of the entries of these blocks, block by block, in a bucket of ``size``."""
        found = (numbers[:, None] * self.block + torch.arange(self.block, device=numbers.device)).view(-1)
        return found[found < size]
