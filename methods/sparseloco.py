"""SparseLoCo: workers train locally, and exchange the largest entries of their weight changes, with 2-bit values."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, LocalSteps, Requests, StepContext
from dlgs_bench.exchange.magnitudes import largest_in_rows
from dlgs_bench.exchange.packing import blocks, join, pack, pack_indices, unpack, unpack_indices

CHUNK = 4096  # entries, so that an index in a chunk has 12 bits


@dataclass
class SparseLoCo(ErrorFeedback, LocalSteps):
    """Sparse DiLoCo (Sarfi et al., Communication Efficient LLM Pre-training with SparseLoCo, arXiv 2508.15706, 2025).

    e = decay e + delta. In each chunk of 4096 entries, the ``top`` largest entries are sent and subtracted from e,
    which replaces outer momentum. Their mean over all workers is subtracted from the shared weights. Two bits encode
    the sign of a value, and whether its magnitude is above the mean of the chunk's sent values. The value is then
    replaced by the mean magnitude of the values on its side of this mean.
    """

    title = "SparseLoCo"
    exact_when = {"top": CHUNK, "decay": 0.0, "bits": 32}  # noqa: RUF012 - a constant, read by tests
    conserves_mass = "rounding"
    conserves_when = {"decay": 1.0}  # noqa: RUF012 - a constant, read by tests

    top: Annotated[int, ">= 1"] = 64
    decay: Annotated[float, ">= 0", "<= 1"] = 0.95
    bits: Literal[2, 32] = 2

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        error = self.residual(bucket).mul_(self.decay).add_(bucket.gradient)
        chunks = blocks(error, min(CHUNK, bucket.size))
        indices = largest_in_rows(chunks, self.top)
        message = self._encoded(chunks.gather(1, indices), indices, bucket.size)
        _, sent = self._decoded(message, indices.shape)
        error.copy_(chunks.scatter_add_(1, indices, -sent).view(-1)[: bucket.size])
        received = yield Gather(message, entries=min(indices.numel(), bucket.size))
        total = torch.zeros_like(chunks)
        for message in received:  # in rank order, so that all workers get the same bits
            total.scatter_add_(1, *self._decoded(message, indices.shape))
        return bucket.gradient.copy_(total.view(-1)[: bucket.size])

    def _encoded(self, values: Tensor, indices: Tensor, entries: int) -> Tensor:
        """``entries``: of the bucket; the last chunk is filled up with zeros, which the means leave out."""
        if self.bits == 32:
            return join(values, pack_indices(indices))
        starts = CHUNK * torch.arange(len(indices), device=indices.device)[:, None]
        sizes, real = values.abs(), starts + indices < entries
        large = sizes > sizes.sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True)
        means = [(sizes * kind).sum(1) / kind.sum(1).clamp(min=1) for kind in (~large & real, large)]
        codes = (large * 2 + (values < 0)).to(torch.uint8).view(-1)
        return join(pack(torch.stack(means, dim=1).view(-1), codes, 2), pack_indices(indices))

    def _decoded(self, message: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """The indices and the values in a message, both of this shape."""
        rest, indices = unpack_indices(message, shape)
        if self.bits == 32:
            return indices, rest.clone().view(torch.float32).view(shape)
        means, codes = unpack(rest, 2 * shape[0], 2, shape.numel())
        sizes = means.view(-1, 2).gather(1, (codes >> 1).long().view(shape))
        return indices, torch.where((codes & 1).bool().view(shape), -sizes, sizes)
