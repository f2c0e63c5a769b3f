"""Two-step quantised all-reduce: 8 or 4 bits an entry to the worker that sums it up, and as many back to all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from harness.exchange import At, Bucket, Gather, Method, Round
from harness.exchange.packing import blocks, pack, unpack


@dataclass
class Quantised(Method):
    """Quantise, all-to-all, sum in 32 bits, quantise, all-gather (qgZ in Wang et al., ZeRO++, arXiv 2306.10209, 2023).

    Blocks are rounded to the nearest of 2 ** bits - 1 multiples of their largest magnitude. Parts of the bucket, one
    for each worker, are equal to one entry, whatever its size.
    """

    title = "quantised, two steps"
    scope = "size"
    relative_error = 0.13  # of 8 bits: e + (1 + e) e, e = sqrt(block) / 254

    bits: Literal[4, 8] = 8
    block: Annotated[int, ">= 1"] = 256

    def rounds(self, bucket: Bucket, at: At) -> int:
        return 2

    def exchange(self, bucket: Bucket, at: At):
        parts = bucket.gradient.tensor_split(at.workers)
        messages = dict(enumerate(self.encoded_parts(parts, bucket)))
        own = messages.pop(at.rank)
        sent, size = bucket.size - len(parts[at.rank]), len(parts[at.rank])
        received = yield Round(messages, dict.fromkeys(messages, len(own)), torch.uint8, entries=sent)
        total = torch.zeros_like(parts[at.rank])
        for _, message in sorted([*received.items(), (at.rank, own)], key=lambda one: one[0]):
            total += self._decoded(message, size)
        gathered = yield Gather(self.encoded_sum(total, bucket), entries=size)
        for part, message in zip(parts, gathered, strict=True):
            part.copy_(self._decoded(message, len(part)))
        return bucket.gradient

    def encoded_parts(self, parts: tuple[Tensor, ...], bucket: Bucket) -> Iterator[Tensor]:
        """What this worker sends of each part of the bucket."""
        return map(self._encoded, parts)

    def encoded_sum(self, total: Tensor, bucket: Bucket) -> Tensor:
        """What it sends on of the sum of its part."""
        return self._encoded(total)

    @property
    def _levels(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def _encoded(self, vector: Tensor) -> Tensor:
        inside = blocks(vector, self.block)
        scales = inside.abs().amax(dim=1) / self._levels
        codes = (inside / scales.clamp(min=1e-30)[:, None]).round_().add_(self._levels).to(torch.uint8)
        return pack(scales, codes.view(-1)[: len(vector)], self.bits)

    def _decoded(self, message: Tensor, size: int) -> Tensor:
        scales, codes = unpack(message, -(-size // self.block), self.bits, size)
        levels = blocks(codes.to(torch.float32).sub_(self._levels), self.block)
        return (levels * scales[:, None]).view(-1)[:size]
