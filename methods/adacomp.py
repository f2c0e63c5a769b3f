"""AdaComp: an entry is sent if it reaches the largest magnitude of its bin when this step's gradient is added again."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, Requests, StepContext
from dlgs_bench.exchange.magnitudes import indices_at_least
from dlgs_bench.exchange.packing import add_signs, pack_signs
from dlgs_bench.exchange.quantisation import norms


@dataclass
class AdaComp(ErrorFeedback):
    """Adaptive residual gradient compression (Chen et al., AdaComp, AAAI 2018, Algorithm 2).

    Let G = residual + g. An entry is sent if abs(G + g) is at least the largest abs(G) of its bin. Only the sign of G
    is sent; its magnitude is the mean of the bins' largest magnitudes in the layer. An index and a sign take 32 bits
    here. The authors use 8 or 16 bits, for an index within a bin.
    """

    title = "AdaComp"
    scope = "layer"
    cost_depends_on_shapes = True
    conserves_mass = "rounding"

    bin: Annotated[int, ">= 1"] = 50
    bin_linear: Annotated[int, ">= 1"] = 500  # the bin of layers with two dimensions

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        scale, indices, signs = self._take(self.accumulate(bucket), bucket.gradient, self._length(bucket))
        message = torch.cat([scale.view(1).view(torch.int32), pack_signs(indices, signs < 0)])
        received = yield Gather(message, entries=len(indices))
        aggregate = bucket.gradient.zero_()
        for message in received:
            add_signs(aggregate, message[1:], message[:1].view(torch.float32))
        return aggregate

    def _length(self, bucket: Bucket) -> int:
        """The number of entries of a bin."""
        return self.bin_linear if [len(shape) for shape in bucket.shapes] == [2] else self.bin

    def _take(self, corrected: Tensor, gradient: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """The scale, shape (), the indices and the signs to send. They are subtracted from ``corrected``, in place."""
        largest = norms(corrected, length, math.inf)
        indices = indices_at_least(corrected + gradient, largest, length)
        indices = indices[corrected[indices] != 0]
        scale, signs = largest.mean(), corrected[indices].sign()
        corrected.index_add_(0, indices, signs * scale, alpha=-1)
        return scale, indices, signs

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        def send(corrected: Tensor, drawn: Tensor, step: int) -> None:
            self._take(corrected, drawn, self._length(bucket))

        self.simulate(bucket, send)
