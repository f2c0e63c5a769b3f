"""QSGD: every entry rounded at random to one of a few levels of its bucket's norm (Alistarh et al., NIPS 2017)."""

from dataclasses import dataclass, field
from typing import Annotated

import torch

from harness.exchange import Gather, Method


@dataclass
class QSGD(Method):
    title = "QSGD"
    scope = "size"
    unbiased = True
    state = ("drawn",)

    levels: Annotated[int, ">= 1"] = 100
    drawn: int = field(default=0, init=False)  # how often random numbers were drawn

    def exchange(self, bucket, at):
        self.drawn += 1
        numbers = torch.Generator().manual_seed(1000003 * self.drawn + at.rank)
        norm = bucket.gradient.norm().view(1)
        scaled = bucket.gradient / norm.clamp(min=1e-30) * self.levels
        codes = (scaled + torch.rand(bucket.size, generator=numbers)).floor().to(torch.int8)
        message = torch.cat([norm.view(torch.int8), codes])
        received = yield Gather(message, entries=bucket.size)
        return sum(m[:4].clone().view(torch.float32) / self.levels * m[4:] for m in received)
