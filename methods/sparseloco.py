"""SparseLoCo: workers train alone, and send the largest entries of how far their weights went, in 2 bits each."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, LocalSteps, StepContext
from dlgs_bench.exchange.magnitudes import largest_in_rows
from dlgs_bench.exchange.packing import blocks, join, pack, pack_indices, unpack, unpack_indices

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

    def exchange(self, bucket: Bucket, context: StepContext):
        error = self.residual(bucket).mul_(self.decay).add_(bucket.gradient)
        chunks = blocks(error, min(CHUNK, bucket.size))
        places = largest_in_rows(chunks, self.top)
        message = self._encoded(chunks.gather(1, places), places)
        _, sent = self._decoded(message, places.shape)
        error.copy_(chunks.scatter_add_(1, places, -sent).view(-1)[: bucket.size])
        received = yield Gather(message, entries=min(places.numel(), bucket.size))
        total = torch.zeros_like(chunks)
        for message in received:  # in rank order: the same bits everywhere
            total.scatter_add_(1, *self._decoded(message, places.shape))
        return bucket.gradient.copy_(total.view(-1)[: bucket.size])

    def _encoded(self, values: Tensor, places: Tensor) -> Tensor:
        if self.bits == 32:
            return join(values, pack_indices(places))
        sizes = values.abs()
        large = sizes > sizes.mean(dim=1, keepdim=True)
        means = [(sizes * kind).sum(1) / kind.sum(1).clamp(min=1) for kind in (~large, large)]
        codes = (large * 2 + (values < 0)).to(torch.uint8).view(-1)
        return join(pack(torch.stack(means, dim=1).view(-1), codes, 2), pack_indices(places))

    def _decoded(self, message: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """The places, of this shape, and what is sent of each."""
        rest, places = unpack_indices(message, shape)
        if self.bits == 32:
            return places, rest.clone().view(torch.float32).view(shape)
        means, codes = unpack(rest, 2 * shape[0], 2, shape.numel())
        sizes = means.view(-1, 2).gather(1, (codes >> 1).long().view(shape))
        return places, torch.where((codes & 1).bool().view(shape), -sizes, sizes)
