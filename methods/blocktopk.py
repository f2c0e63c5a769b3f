"""Block Top-K: whole blocks of entries, those of largest norm; what any worker chose, all add up densely."""

from dataclasses import dataclass
from typing import Annotated

import torch

from harness.exchange import At, Bucket, Gather, Ratio, Selects, Sum, TopK
from harness.exchange.packing import blocks, pack, unpack


@dataclass
class BlockTopK(Selects, Ratio):
    """Block sparsification (Fei et al., OmniReduce, SIGCOMM 2021): a bit for each block tells the others which blocks
    a worker chose, and a dense sum carries the union, so no indices travel."""

    title = "block Top-K"
    scope = "model"
    conserves_mass = "bits"

    block: Annotated[int, ">= 1"] = 256

    def rounds(self, bucket: Bucket, at: At) -> int:
        return 2

    def exchange(self, bucket: Bucket, at: At):
        acc = self.accumulate(bucket)
        norms = blocks(acc, self.block).square().sum(dim=1)
        bits = torch.zeros_like(norms, dtype=torch.uint8)
        _, chosen = self.selector.take(norms, TopK(self.k(bucket, len(norms))))
        bits.index_fill_(0, chosen.long(), 1)
        for message in (yield Gather(pack(norms[:0], bits, bits=1), entries=0)):
            bits |= unpack(message, 0, 1, len(bits))[1]
        places = bits.bool().repeat_interleave(self.block)[: bucket.size].nonzero().view(-1)
        values = acc[places]
        acc.index_fill_(0, places, 0)
        total = yield Sum(values)
        return bucket.gradient.zero_().index_copy_(0, places, total)
