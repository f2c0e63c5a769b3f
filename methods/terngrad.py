"""TernGrad: -s, 0 or s with probability |g| / s, s the largest magnitude that any worker has in the layer."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from dlgs_bench.exchange import Bucket, Gather, Max, Method, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, norms


@dataclass
class TernGrad(Method):
    """Ternary gradients (Wen et al., TernGrad, NIPS 2017): layer by layer, clipped at ``clip`` times their root mean
    square (theirs: standard deviation, which is 0 in a layer of one entry), 2 bits an entry.

    One s for all workers, so that ternary values add up: that needs a maximum first.
    """

    title = "TernGrad"
    scope = "size"
    unbiased_when = {"clip": math.inf}  # noqa: RUF012 - a constant, read by tests

    clip: Annotated[float, "> 0"] = 2.5
    seed: int = 0

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext):
        gradient, sizes = bucket.gradient, bucket.sizes
        deviations = norms(gradient, sizes, 2) / gradient.new_tensor(sizes).sqrt()
        scales = norms(gradient, sizes, math.inf).minimum(self.clip * deviations)
        if math.isfinite(self.clip):  # before the maximum: another worker's scale may be larger than this one's clip
            limits = scales.repeat_interleave(torch.tensor(sizes, device=gradient.device))
            gradient.clamp_(-limits, limits)
        # An engine's maximum may lose NaN; infinity arrives, and becomes NaN again.
        scales = yield Max(scales.nan_to_num_(nan=math.inf))
        scales.masked_fill_(scales.isinf(), math.nan)
        known = scales.view(torch.uint8)  # what all have need not travel
        message = encode(gradient, scales, sizes, 2, seed=(self.seed, context.step, bucket.index, context.rank))
        received = yield Gather(message[len(known) :], entries=bucket.size)
        return decode([torch.cat([known, codes]) for codes in received], sizes, 2, gradient)
