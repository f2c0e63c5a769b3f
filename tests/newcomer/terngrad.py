"""TernGrad: -s, 0 or s with probability |g| / s, s the largest magnitude of all workers (Wen et al., NIPS 2017)."""

from dataclasses import dataclass, field

import torch

from harness.exchange import Gather, Max, Method


@dataclass
class TernGrad(Method):
    title = "TernGrad"
    unbiased = True
    state = ("drawn",)

    drawn: int = field(default=0, init=False)

    def rounds(self, bucket, at):
        return 2

    def exchange(self, bucket, at):
        self.drawn += 1
        numbers = torch.Generator().manual_seed(1000003 * self.drawn + at.rank)
        largest = yield Max(bucket.gradient.abs().max().view(1))
        chance = bucket.gradient.abs() / largest.clamp(min=1e-30)
        kept = torch.rand(bucket.size, generator=numbers) < chance
        received = yield Gather((bucket.gradient.sign() * kept).to(torch.int8), entries=bucket.size)
        return sum(m * largest for m in received)
