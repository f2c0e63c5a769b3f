"""Float codes on any device: bfloat16, or 8-bit floats times a unit per block.

Blocks of 8-bit floats are scaled so that their largest magnitude becomes the largest number of the format.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dlgs_bench.exchange.packing import join
from dlgs_bench.exchange.quantisation import norms

DTYPES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def encode(vector: Tensor, block: int, code: str) -> Tensor:
    """A message, uint8, of ``vector``, float32 (n,): the units of its blocks, then the codes. bf16 has no units."""
    dtype = DTYPES[code]
    if code == "bf16":
        return join(vector.to(dtype))
    largest = torch.finfo(dtype).max
    units = norms(vector, block, math.inf) / largest
    divisors = torch.where(units > 0, units, 1).repeat_interleave(min(block, len(vector)))[: len(vector)]
    codes = (vector / divisors).clamp_(-largest, largest)  # a denormal unit is rounded, by a half at most
    return join(units, codes.to(dtype))


def decode(messages: Sequence[Tensor], block: int, code: str, out: Tensor) -> Tensor:
    """Write the float32 sum of the vectors in messages of ``encode``, added in order, to ``out``, (n,); return it."""
    out.zero_()
    floats, length = 0 if code == "bf16" else -(-len(out) // block), min(block, len(out))
    for message in messages:
        units, codes = message.clone().tensor_split([4 * floats])
        vector = codes.clone().view(DTYPES[code]).float()
        out += vector * units.view(torch.float32).repeat_interleave(length)[: len(out)] if floats else vector
    return out
