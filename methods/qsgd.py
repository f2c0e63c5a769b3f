"""QSGD: every entry rounded at random to one of a few levels of its block's norm."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from harness.exchange import At, Bucket, Gather, Method
from harness.exchange.packing import blocks, pack, unpack
from harness.exchange.randomness import generator


@dataclass
class QSGD(Method):
    """Quantised SGD (Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NIPS
    2017), its codes in ``bits`` bits each instead of Elias codes: s = 2 ** (bits - 1) - 1 levels of either sign.

    Its error is a variance of at most min(d / s^2, sqrt(d) / s) of a block's squared norm, d = ``block``: unbounded
    as a contraction, so error feedback would make it diverge, and there is none.
    """

    title = "QSGD"
    scope = "size"
    unbiased_when = {}  # noqa: RUF012 - a constant, read by tests

    bits: Literal[2, 4, 8] = 4
    block: Annotated[int, ">= 1"] = 512
    seed: int = 0

    @property
    def levels(self) -> int:
        """s, of either sign."""
        return 2 ** (self.bits - 1) - 1

    def exchange(self, bucket: Bucket, at: At):
        numbers = generator(bucket.gradient.device, self.seed, at.step, bucket.index, at.rank)
        parts = blocks(bucket.gradient, self.block)
        norms = parts.norm(dim=1)
        scaled = parts * (self.levels / norms.clamp(min=1e-30))[:, None]
        levels = scaled.add_(torch.rand(scaled.shape, generator=numbers, device=scaled.device)).floor_()
        codes = levels.clamp_(-self.levels, self.levels).add_(self.levels).to(torch.uint8).view(-1)
        received = yield Gather(pack(norms, codes[: bucket.size], self.bits), entries=bucket.size)
        aggregate = bucket.gradient.zero_()
        for message in received:
            aggregate += self._decoded(message, bucket.size)
        return aggregate

    def _decoded(self, message: Tensor, size: int) -> Tensor:
        norms, codes = unpack(message, -(-size // self.block), self.bits, size)
        levels = blocks(codes.to(torch.float32).sub_(self.levels), self.block)
        return (levels * (norms / self.levels)[:, None]).view(-1)[:size]
