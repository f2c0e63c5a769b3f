"""TernGrad: -s, 0 or s with probability |g| / s, s the largest magnitude that any worker has in the layer."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch

from harness.exchange import At, Bucket, Gather, Max, Method
from harness.exchange.packing import pack, times, unpack
from harness.exchange.randomness import generator


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

    def rounds(self, bucket: Bucket, at: At) -> int:
        return 2

    def exchange(self, bucket: Bucket, at: At):
        gradient, tiny = bucket.gradient, 1e-30
        for layer in gradient.split(bucket.sizes):
            bound = self.clip * layer.square().mean().sqrt().clamp(min=tiny)
            layer.clamp_(-bound, bound)
        scales = torch.stack([layer.abs().max() for layer in gradient.split(bucket.sizes)])
        # An engine's maximum may lose NaN; infinity arrives, and makes NaN of the aggregate.
        scales = yield Max(scales.nan_to_num_(nan=math.inf))
        numbers = generator(gradient.device, self.seed, at.step, bucket.index, at.rank)
        chances = times(torch.rand(bucket.size, generator=numbers, device=gradient.device), scales, bucket.sizes)
        codes = (chances < gradient.abs()) * (1 + (gradient < 0).to(torch.uint8))
        received = yield Gather(pack(scales[:0], codes, bits=2), entries=bucket.size)
        gradient.zero_()
        for message in received:
            _, codes = unpack(message, 0, 2, bucket.size)
            gradient += (codes & 1).to(torch.int8) - (codes >> 1).to(torch.int8)
        return times(gradient, scales, bucket.sizes)
