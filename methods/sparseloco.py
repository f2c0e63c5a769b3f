"""SparseLoCo: workers train alone, and send the largest entries of how far their weights went, in 2 bits each."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from harness.exchange import At, Bucket, ErrorFeedback, Gather, LocalSteps
from harness.exchange.packing import blocks, pack, unpack

CHUNK = 4096  # entries, so that a place in it is a number of 12 bits


@dataclass
class SparseLoCo(ErrorFeedback, LocalSteps):
    """Sparse DiLoCo (Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, arXiv 2508.15706, 2025).

    e = decay e + delta; of each chunk of 4096 entries the ``top`` largest are sent and taken out of e, which stands in
    for outer momentum; their mean over all workers is subtracted from the shared weights. In 2 bits a value is its sign
    and whether its magnitude is above the chunk's mean; it counts as the mean magnitude of its kind.
    """

    title = "SparseLoCo"
    exact_when = {"top": CHUNK, "decay": 0.0, "bits": 32}  # noqa: RUF012 - a constant, read by tests
    conserves_mass = "rounding"
    conserves_when = {"decay": 1.0}  # noqa: RUF012 - a constant, read by tests

    top: Annotated[int, ">= 1"] = 64
    decay: Annotated[float, ">= 0"] = 0.95
    bits: Literal[2, 32] = 2

    def exchange(self, bucket: Bucket, at: At):
        error = self.residual(bucket).mul_(self.decay).add_(bucket.gradient)
        chunks = blocks(error, min(CHUNK, bucket.size))
        places = chunks.abs().topk(min(self.top, chunks.shape[1])).indices
        message = self._encoded(chunks.gather(1, places), places)
        error -= self._decoded(message, chunks, places.shape)[: bucket.size]
        messages = yield Gather(message, entries=min(places.numel(), bucket.size))
        bucket.gradient.zero_()
        for message in messages:  # in rank order: the same bits everywhere
            bucket.gradient.add_(self._decoded(message, chunks, places.shape)[: bucket.size])
        return bucket.gradient

    def _encoded(self, values: Tensor, places: Tensor) -> Tensor:
        floats, codes = values, values.new_empty(0, dtype=torch.uint8)
        if self.bits == 2:
            sizes = values.abs()
            large = sizes > sizes.mean(dim=1, keepdim=True)
            means = [(sizes * kind).sum(1) / kind.sum(1).clamp(min=1) for kind in (~large, large)]
            floats, codes = torch.stack(means, dim=1), (large * 2 + (values < 0)).to(torch.uint8).view(-1)
        low, high = ((places >> shift & mask).to(torch.uint8).view(-1) for shift, mask in ((0, 255), (8, 15)))
        none = values.new_empty(0)
        return torch.cat([pack(floats.reshape(-1), codes, 2), pack(none, low, 8), pack(none, high, 4)])

    def _decoded(self, message: Tensor, like: Tensor, shape: torch.Size) -> Tensor:
        """The entries at their places, all others 0, flat; ``like``: of the chunks' shape, ``shape``: of the places."""
        count = shape.numel()
        values, low, high = message.split([len(message) - count - -(-count // 2), count, -(-count // 2)])
        places = low.long() | unpack(high, 0, 4, count)[1].long() << 8
        if self.bits == 2:
            means, codes = unpack(values, 2 * shape[0], 2, count)
            sizes = means.view(-1, 2).gather(1, (codes >> 1).long().view(shape))
            values = torch.where((codes & 1).bool().view(shape), -sizes, sizes)
        else:
            values = values.clone().view(torch.float32)
        return torch.zeros_like(like).scatter_(1, places.view(shape), values.view(shape)).view(-1)
