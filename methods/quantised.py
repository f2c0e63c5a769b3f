"""Two-step quantised all-reduce: 8 or 4 bits an entry to the worker that sums it up, and as many back to all."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Method, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, norms
from dlgs_bench.exchange.steps import to_each


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

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext):
        parts = bucket.gradient.tensor_split(context.workers)
        messages, mine = list(self.encoded_parts(parts, bucket)), parts[context.rank]
        received = yield from to_each(messages, context, bucket.size - len(mine), lengths_known=True)
        total = decode(received, self.block, self.bits, torch.empty_like(mine))
        gathered = yield Gather(self.encoded_sum(total, bucket), entries=len(mine))
        for part, message in zip(parts, gathered, strict=True):
            decode([message], self.block, self.bits, part)
        return bucket.gradient

    def encoded_parts(self, parts: tuple[Tensor, ...], bucket: Bucket) -> Iterator[Tensor]:
        """What this worker sends of each part of the bucket."""
        return map(self._encoded, parts)

    def encoded_sum(self, total: Tensor, bucket: Bucket) -> Tensor:
        """What it sends on of the sum of its part."""
        return self._encoded(total)

    def _encoded(self, vector: Tensor) -> Tensor:
        levels = 2 ** (self.bits - 1) - 1
        return encode(vector, norms(vector, self.block, math.inf) / levels, self.block, self.bits)
