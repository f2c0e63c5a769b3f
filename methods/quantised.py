"""Two-step quantised all-reduce: each entry is sent in 4 to 16 bits to a worker that sums it, and its sum to all."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Method, Requests, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, floats, norms, subtract
from dlgs_bench.exchange.randomness import uniform
from dlgs_bench.exchange.steps import all_to_all
from dlgs_bench.exchange.transforms import rotate


@dataclass
class Quantised(Method):
    """Quantise, all-to-all, sum in 32 bits, quantise, all-gather (qgZ in Wang et al., ZeRO++, arXiv 2306.10209, 2023).

    Entries are rounded to the nearest of 2 ** bits - 1 equally spaced levels; the largest magnitude of a block is the
    last level. The bucket is split into one part per worker; the sizes of parts differ by at most one entry. Here
    the all-to-all has one hop; qgZ has two hops, within a node and then between nodes.

    ``code`` other than ``"integer"`` sends floats, and ``bits`` has no effect. ``"bf16"`` is bfloat16. ``"e4m3"`` and
    ``"e5m2"`` are 8-bit floats (Micikevicius et al., FP8 Formats for Deep Learning, arXiv 2209.05433, 2022), with one
    scale per block. The sum is float32 in every case.

    With ``rotated``, all workers multiply the entries by the same random signs and apply a Hadamard transform before
    they quantise. Both are undone at the end (Jia et al., SDP4Bit, NeurIPS 2024; Li et al., THC, NSDI 2024). This
    spreads a large entry over 4096 entries, so that the scale of its block is not too coarse for the other entries. The
    signs are the same in every step.
    """

    title = "quantised, two steps"
    scope = "size"
    link_growth = "(N - 1) / N"
    relative_error = 0.13  # with 8 bits: e + (1 + e) e, where e = sqrt(block) / 254

    bits: Literal[4, 5, 8] = 8
    block: Annotated[int, ">= 1"] = 256
    code: Literal["integer", "bf16", "e4m3", "e5m2"] = field(default="integer", kw_only=True)
    rotated: bool = field(default=False, kw_only=True)

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        if self.rotated:
            drawn = uniform(bucket.gradient.device, bucket.size, bucket.index) >= 0.5
            signs = drawn.to(bucket.gradient.dtype).mul_(2).sub_(1)
            rotate(bucket.gradient.mul_(signs))
        parts = bucket.gradient.tensor_split(context.workers)
        messages, mine = list(self.encoded_parts(parts, bucket)), parts[context.rank]
        received = yield from all_to_all(messages, context, bucket.size - len(mine), lengths_known=True)
        total = self._decoded(received, torch.empty_like(mine))
        gathered = yield Gather(self.encoded_sum(total, bucket), entries=len(mine))
        for part, message in zip(parts, gathered, strict=True):
            self._decoded([message], part)
        return rotate(bucket.gradient).mul_(signs) if self.rotated else bucket.gradient

    def encoded_parts(self, parts: tuple[Tensor, ...], bucket: Bucket) -> Iterator[Tensor]:
        """The messages that this worker sends, one for each part of the bucket."""
        return map(self._encoded, parts)

    def encoded_sum(self, total: Tensor, bucket: Bucket) -> Tensor:
        """The message of the sum of this worker's part."""
        return self._encoded(total)

    def _encoded(self, vector: Tensor) -> Tensor:
        if self.code != "integer":
            return floats.encode(vector, self.block, self.code)
        levels = 2 ** (self.bits - 1) - 1
        return encode(vector, norms(vector, self.block, math.inf) / levels, self.block, self.bits)

    def _decoded(self, messages: Sequence[Tensor], out: Tensor) -> Tensor:
        """Write the sum of the vectors in the messages to ``out``, and return it."""
        if self.code != "integer":
            return floats.decode(messages, self.block, self.code, out)
        return decode(messages, self.block, self.bits, out)

    def _subtracted(self, message: Tensor, out: Tensor) -> Tensor:
        """Subtract the vector in the message from ``out``, in place, and return it."""
        if self.code != "integer":
            return out.sub_(floats.decode([message], self.block, self.code, torch.empty_like(out)))
        return subtract(message, self.block, self.bits, out)
