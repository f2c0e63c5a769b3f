"""TernGrad: each entry becomes -s, 0 or s at random, where s is the largest magnitude of any worker in the layer."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from dlgs_bench.exchange import Bucket, Gather, Max, Method, Requests, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, norms


@dataclass
class TernGrad(Method):
    """Ternary gradients (Wen et al., TernGrad, NIPS 2017), with 2 bits per entry.

    An entry g becomes s with its sign with probability |g| / s, and 0 otherwise. All workers use the same s in a layer,
    so that ternary values can be added; a maximum over workers precedes the gather. Each layer is clipped at ``clip``
    times its root mean square. The authors use the standard deviation, which is 0 in a layer of one entry.
    """

    title = "TernGrad"
    scope = "size"
    unbiased_when = {"clip": math.inf}  # noqa: RUF012 - a constant, read by tests

    clip: Annotated[float, "> 0"] = 2.5
    seed: Annotated[int, ">= 0"] = 0

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        gradient, sizes = bucket.gradient, bucket.sizes
        scales = norms(gradient, sizes, math.inf)
        if math.isfinite(self.clip):  # before the maximum: another worker's scale may exceed this worker's clip
            deviations = norms(gradient, sizes, 2) / gradient.new_tensor(sizes).sqrt()
            scales = scales.minimum(self.clip * deviations)
            limits = scales.repeat_interleave(torch.tensor(sizes, device=gradient.device))
            gradient.clamp_(-limits, limits)
        # An engine's maximum may drop NaN, but not infinity, so NaN is sent as infinity.
        scales = yield Max(scales.nan_to_num_(nan=math.inf, posinf=math.inf))
        scales.masked_fill_(scales.isinf(), math.nan)
        units = scales.view(torch.uint8)  # all workers have the units, so they are not sent
        message = encode(gradient, scales, sizes, 2, seed=(self.seed, context.step, bucket.index, context.rank))
        received = yield Gather(message[len(units) :], entries=bucket.size)
        return decode([torch.cat([units, codes]) for codes in received], sizes, 2, gradient)
