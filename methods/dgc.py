"""DGC: momentum on each worker before sparsification, forgotten where an entry is sent."""

import math
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from dlgs_bench.exchange import Bucket, Momentum, Ratio, Selects, StepContext, Sum, Threshold, TopK
from dlgs_bench.exchange.magnitudes import count_at_least

STRIDE = 101  # the sample is one entry of so many
FEWEST = 10  # entries of the sample that a threshold rests on; with fewer, all are looked at


@dataclass
class DGC(Momentum, Selects, Ratio):
    """Deep gradient compression (Lin et al., ICLR 2018): clip g; u = m u + g; v = v + u; send the largest of v; clear
    u and v there. v is the residual. The optimizer's own momentum is off.

    A sample of 1 % gives a threshold; where far more or fewer than k entries reach it, Top-K takes its place.
    ``warmup``: steps of each stage of the warm-up, which sends a quarter of the entries, then a sixteenth, and so on
    down to the ratio. ``clip``: bound on the norm of a layer's mean gradient; each worker's share of it is held to
    1 / sqrt(workers) of that. ``masking=False`` clears v alone: with every entry sent that is SGD with momentum, while
    masked momentum is forgotten with every entry sent. Warm-up and clipping are off by default: the authors'
    recipes for images do not clip, and warm up for epochs, whose length a method does not know.
    """

    title = "DGC"
    scope = "layer"
    sum_kind = "sparse"
    conserves_mass = None  # what it sends and keeps is velocity

    masking: bool = True
    warmup: Annotated[int, ">= 0"] = 0
    clip: Annotated[float, "> 0"] = math.inf

    def exchange(self, bucket: Bucket, context: StepContext):
        bound = self.clip / context.workers**0.5
        if math.isfinite(bound):
            bucket.gradient.mul_((bound / bucket.gradient.norm().clamp(min=1e-30)).clamp(max=1))
        velocity, unsent = self.velocity(bucket), self.residual(bucket)
        unsent += velocity
        values, indices = self.selector.take(unsent, self._rule(unsent, self._k(bucket, context)))
        if self.masking:
            velocity.index_fill_(0, indices.long(), 0)
        return (yield Sum(values, indices, out=bucket.gradient))

    def _k(self, bucket: Bucket, context: StepContext) -> int:
        early = 0.25 ** (1 + (context.step - 1) // self.warmup) if self.warmup else 0
        return max(self.k(bucket), int(early * bucket.size))

    def _rule(self, unsent: Tensor, k: int) -> TopK | Threshold:
        sample = unsent[::STRIDE].contiguous()
        share = round(k * len(sample) / len(unsent))
        if FEWEST <= share < len(sample):
            h = self.selector.kth_magnitude(sample, share)
            if 0.8 * k <= count_at_least(unsent, h)[0] <= 1.3 * k:  # the authors' bounds
                return Threshold(h)
        return TopK(k)
