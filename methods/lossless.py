"""Lossless: exponents are Huffman-coded, signs and mantissas are sent uncoded, and the sum is exact."""

import zlib
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Method, Requests, StepContext
from dlgs_bench.exchange.steps import all_to_all


@dataclass
class Lossless(Method):
    """Compress the exponents, which are similar within a gradient (as ZipCCL, arXiv 2604.27844, and UCCL-Zip, arXiv
    2604.17172, do on GPUs).

    The exchange has two steps, as in ``quantised``: all-to-all, float32 sum in rank order, all-gather. Each message has
    its own Huffman code, from zlib. Entries on other devices are coded on the host.
    """

    title = "lossless"
    scope = "size"
    link_growth = "(N - 1) / N"
    elementwise = True
    exact_when = {}  # noqa: RUF012 - a constant, read by tests

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        parts = bucket.gradient.tensor_split(context.workers)
        messages, mine = [encode(part) for part in parts], parts[context.rank]
        received = yield from all_to_all(messages, context, bucket.size - len(mine), lengths_known=False)
        total = reduce(torch.add, [decode(message, mine) for message in received])
        gathered = yield Gather(encode(total), entries=len(mine))
        for part, message in zip(parts, gathered, strict=True):
            part.copy_(decode(message, part))
        return bucket.gradient


def encode(vector: Tensor) -> Tensor:
    """A message, uint8, of ``vector``, float32 (n,): 3 bytes of sign and mantissa per entry, then coded exponents."""
    bits = vector.cpu().numpy().view(np.uint32)
    raw = bits & 0x7FFFFF | bits >> 8 & 0x800000
    coder = zlib.compressobj(level=1, strategy=zlib.Z_HUFFMAN_ONLY)
    exponents = coder.compress((bits >> 23 & 0xFF).astype(np.uint8).tobytes()) + coder.flush()
    planes = [(raw >> shift).astype(np.uint8) for shift in (0, 8, 16)]
    return torch.from_numpy(np.concatenate([*planes, np.frombuffer(exponents, np.uint8)])).to(vector.device)


def decode(message: Tensor, like: Tensor) -> Tensor:
    """The vector in a message of ``encode``, bit for bit; ``like``: gives its length and device."""
    data, n = message.cpu().numpy(), len(like)
    low, middle, high = (data[i * n : (i + 1) * n].astype(np.uint32) for i in range(3))
    exponents = np.frombuffer(zlib.decompress(data[3 * n :].tobytes()), np.uint8).astype(np.uint32)
    bits = low | middle << 8 | (high & 0x7F) << 16 | exponents << 23 | (high >> 7) << 31
    return torch.from_numpy(bits.view(np.float32)).to(like.device)
