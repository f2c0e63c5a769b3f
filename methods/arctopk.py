"""ARC-Top-K: all workers select the same rows by a random sketch of the summed gradient; a dense sum adds them."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Ratio, Requests, StepContext, Sum
from dlgs_bench.exchange.randomness import generator


@dataclass
class ARCTopK(Ratio):
    """All-reduce compatible Top-K (Chen et al., arXiv 2510.26709, 2025), with the usual error feedback instead of the
    paper's EF21M.

    A layer is a matrix whose rows are its first dimension. All workers multiply M = gradient + residual by the same
    random matrix of ``rank`` columns. A dense sum adds these products, and all workers select the rows with the largest
    norms. A second dense sum adds the selected rows of M. Indices are not sent. ``ratio`` is the fraction of rows that
    are selected. Layers with at most ``rank`` columns are sent uncompressed.
    """

    title = "ARC-Top-K"
    scope = "layer"
    cost_depends_on_shapes = True
    conserves_mass = "bits"

    rank: Annotated[int, ">= 1"] = 4
    seed: Annotated[int, ">= 0"] = 0

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2 if bucket.size > self.rank * _rows(bucket) else 1

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected, out = self.accumulate(bucket).view(_rows(bucket), -1), bucket.gradient
        if corrected.shape[1] <= self.rank:
            out.copy_(corrected.view(-1))
            corrected.zero_()
            return (yield Sum(out))
        sketch = yield Sum((corrected @ self.directions(bucket, context)).view(-1))
        energies = sketch.view(len(corrected), -1).double().square().sum(1)
        chosen = energies.topk(self.k(bucket, len(corrected))).indices
        values = corrected[chosen]
        corrected.index_fill_(0, chosen, 0)
        total = yield Sum(values.view(-1))
        out.zero_().view(corrected.shape).index_copy_(0, chosen, total.view(values.shape))
        return out

    def directions(self, bucket: Bucket, context: StepContext) -> Tensor:
        """The random matrix of the sketch, shape (columns, rank), the same on all workers."""
        like = bucket.gradient
        drawn = generator(like.device, self.seed, context.step, bucket.index)
        shape = (bucket.size // _rows(bucket), self.rank)
        return torch.randn(shape, generator=drawn, dtype=like.dtype, device=like.device)


def _rows(bucket: Bucket) -> int:
    return bucket.shapes[0][0] if bucket.shapes and bucket.shapes[0] else 1
