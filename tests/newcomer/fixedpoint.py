"""Fixed point: every entry rounded at random to a multiple of the largest magnitude of all workers, in a byte."""

from dataclasses import dataclass, field
from typing import Annotated

import torch

from dlgs_bench.exchange import Gather, Max, Method


@dataclass
class FixedPoint(Method):
    title = "fixed point"
    scope = "size"
    unbiased_when = {}  # noqa: RUF012
    state = ("drawn",)

    levels: Annotated[int, ">= 1"] = 100
    drawn: int = field(default=0, init=False)  # how often random numbers were drawn

    def num_requests(self, bucket, context):
        return 2

    def exchange(self, bucket, context):
        self.drawn += 1
        numbers = torch.Generator().manual_seed(1000003 * self.drawn + context.rank)
        largest = yield Max(bucket.gradient.abs().max().view(1))
        scaled = bucket.gradient / largest.clamp(min=1e-30) * self.levels
        codes = (scaled + torch.rand(bucket.size, generator=numbers)).floor().to(torch.int8)
        received = yield Gather(codes, entries=bucket.size)
        return sum(m * (largest / self.levels) for m in received)
