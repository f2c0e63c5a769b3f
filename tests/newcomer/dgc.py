"""DGC without clipping and warm-up: momentum before sparsification (Lin et al., ICLR 2018)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.exchange import Momentum, Sum


@dataclass
class DGC(Momentum):
    title = "DGC"
    one_sum = "sparse"
    exact_when = {"ratio": 1.0}  # noqa: RUF012
    state = ("unsent",)

    ratio: float
    unsent: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def exchange(self, bucket, at):
        velocity = self.velocity(bucket)
        acc = self.unsent.setdefault(bucket.index, torch.zeros_like(velocity)).add_(velocity)
        chosen = acc.abs().topk(max(1, int(self.ratio * bucket.size))).indices
        values = acc[chosen]
        acc[chosen] = 0
        velocity[chosen] = 0
        return (yield Sum(values, chosen, out=bucket.gradient))
