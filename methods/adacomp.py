"""AdaComp: of each bin of a layer, the entries that this step may have made the bin's largest."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, StepContext
from dlgs_bench.exchange.magnitudes import indices_at_least
from dlgs_bench.exchange.packing import add_signs, pack_signs
from dlgs_bench.exchange.quantisation import norms


@dataclass
class AdaComp(ErrorFeedback):
    """Adaptive residual gradient compression (Chen et al., AdaComp, AAAI 2018, Algorithm 2).

    G = residual + g. Where abs(G + g) is at least the largest abs(G) of the bin, the sign of G is sent; what it
    stands for is the mean over the layer's bins of their largest. A place and its sign take 32 bits here, theirs 8
    or 16 within a bin.
    """

    title = "AdaComp"
    scope = "layer"
    conserves_mass = "rounding"

    bin: Annotated[int, ">= 1"] = 50
    bin_linear: Annotated[int, ">= 1"] = 500  # of layers of two dimensions

    def exchange(self, bucket: Bucket, context: StepContext):
        corrected = self.accumulate(bucket)
        length = self.bin_linear if [len(shape) for shape in bucket.shapes] == [2] else self.bin
        largest = norms(corrected, length, math.inf)
        places = indices_at_least(corrected + bucket.gradient, largest, length)
        places = places[corrected[places] != 0]
        scale, signs = largest.mean(), corrected[places].sign()
        corrected.index_add_(0, places, signs * scale, alpha=-1)
        message = torch.cat([scale.view(1).view(torch.int32), pack_signs(places, signs < 0)])
        received = yield Gather(message, entries=len(places))
        aggregate = bucket.gradient.zero_()
        for message in received:
            add_signs(aggregate, message[1:], message[:1].view(torch.float32))
        return aggregate
