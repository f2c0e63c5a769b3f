"""DGC: momentum is applied on each worker before sparsification, and cleared at the entries that are sent."""

import math
from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from dlgs_bench.exchange import Bucket, Momentum, Ratio, Requests, Selects, StepContext, Sum, Threshold, TopK
from dlgs_bench.exchange.magnitudes import count_at_least
from dlgs_bench.exchange.quantisation import norms

STRIDE = 101  # the sample is every 101st entry
FEWEST = 10  # a threshold is estimated from at least this number of sampled entries; with fewer, Top-K is used


@dataclass
class DGC(Momentum, Selects, Ratio):
    """Deep gradient compression (Lin et al., ICLR 2018).

    Clip g; u = m u + g; v = v + u; send the largest entries of v; set u and v to 0 at these entries. v is the residual.
    The optimizer's momentum is off. A sample of 1 % of the entries gives a threshold. If far more or far fewer than k
    entries reach it, Top-K is used instead.

    ``warmup``: steps of each stage of the warm-up, which sends a quarter of the entries, then a sixteenth, and so on
    down to the ratio.
    ``clip``: the norm of each worker's share of a layer's mean gradient is clipped to ``clip`` / sqrt(workers). The
    norm of the mean is then at most about ``clip`` if the workers' gradients are independent. If they are equal, it is
    up to sqrt(workers) times as large. The paper clips the norm of the whole gradient.
    ``masking=False`` clears v, but not u. If all entries are sent, this is SGD with momentum.

    Warm-up and clipping are off by default. The authors' recipes for images do not clip. Their warm-up is given in
    epochs, but a method does not get the length of an epoch.
    """

    title = "DGC"
    scope = "layer"
    sum_kind = "sparse"
    conserves_mass = None  # the residual holds velocity, not gradient

    masking: bool = True
    warmup: Annotated[int, ">= 0"] = 0
    clip: Annotated[float, "> 0"] = math.inf
    warm: bool = field(default=False, init=False, repr=False)  # a timing run starts after the warm-up

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        bound = self.clip / context.workers**0.5
        if math.isfinite(bound):
            length = norms(bucket.gradient, bucket.size, 2)
            bucket.gradient.mul_((bound / length).clamp(max=1))  # zeros give infinity, which clamp makes 1
        velocity, unsent = self.velocity(bucket), self.residual(bucket)
        unsent += velocity
        values, indices = self.selector.take(unsent, self._rule(unsent, self._k(bucket, context)))
        if self.masking:
            velocity.index_fill_(0, indices.long(), 0)
        return (yield Sum(values, indices, out=bucket.gradient))

    def _k(self, bucket: Bucket, context: StepContext) -> int:
        early = 0.25 ** (1 + (context.step - 1) // self.warmup) if self.warmup and not self.warm else 0
        return max(self.k(bucket), int(early * bucket.size))

    def _rule(self, unsent: Tensor, k: int) -> TopK | Threshold:
        sample = unsent[::STRIDE].contiguous()
        sample_k = round(k * len(sample) / len(unsent))
        if FEWEST <= sample_k < len(sample):
            h = self.selector.kth_magnitude(sample, sample_k)
            if 0.8 * k <= count_at_least(unsent, h)[0] <= 1.3 * k:  # the authors' bounds
                return Threshold(h)
        return TopK(k)

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        super().warm_start(bucket, workers)
        self.warm = True
