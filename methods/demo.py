"""DeMo: the largest cosine components of each worker's momentum are sent; the sign of their mean is applied."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Method, Requests, StepContext, Sum
from dlgs_bench.exchange.magnitudes import largest_in_rows
from dlgs_bench.exchange.packing import join, split
from dlgs_bench.exchange.randomness import generator
from dlgs_bench.exchange.steps import state_for
from dlgs_bench.exchange.transforms import cosines

MOST_CHUNK = 181  # indices of a chunk are int16


@dataclass
class DeMo(Method):
    """Decoupled momentum (Peng, Quesnelle, Kingma, DeMo, arXiv 2411.19870, 2024).

    delta = decay delta + lr g, in units of the update. A layer's matrix is split into chunks, whose sides are the
    largest divisors of the matrix's sides that are at most ``chunk``. A cosine transform (DCT-II) is applied to each
    chunk, and its ``top`` largest components are subtracted from delta and sent. The result has the mean of each
    component over the workers that sent it. The optimizer's momentum is off. As in the authors' code, weight decay is
    applied to the weights directly, and is not part of delta.

    ``pick``: with ``"random"`` or ``"stride"``, one in n entries of delta is sent, where n = ``chunk`` ** 2 // ``top``.
    The indices are the same on all workers, so they are not sent. They are random, or every n-th index, shifted by one
    in each step (From et al., DeToNATION, arXiv 2502.06728, 2025; the kind of draw and the shift are not from the
    paper).
    """

    title = "DeMo"
    scope = "layer"
    cost_depends_on_shapes = True
    owns_momentum = True
    exact_when = {"top": 64 * 64, "sign": False}  # noqa: RUF012 - a constant, read by tests
    summed_state = ("momenta",)

    decay: Annotated[float, ">= 0", "<= 1"] = 0.999
    top: Annotated[int, ">= 1"] = 32
    chunk: Annotated[int, ">= 1", f"<= {MOST_CHUNK}"] = 64
    sign: bool = True
    pick: Literal["dct", "random", "stride"] = "dct"
    momenta: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        delta = (
            state_for(self.momenta, bucket.index, bucket.gradient)
            .mul_(self.decay)
            .add_(bucket.gradient, alpha=context.lr)
        )
        send = self._send_waves if self.pick == "dct" else self._send_entries
        yield from send(delta, bucket, context)
        if self.sign:
            return bucket.gradient.sign_()
        return bucket.gradient.mul_(context.workers / context.lr if context.lr else 0.0)  # a warm-up may start at 0

    def _send_waves(self, delta: Tensor, bucket: Bucket, context: StepContext) -> Generator[Gather, list[Tensor], None]:
        """Send components of ``delta``, and write their means over the workers that sent them to the bucket."""
        rows = bucket.shapes[0][0] if bucket.shapes and bucket.shapes[0] else 1
        chunks = self._chunks(delta.view(rows, -1))  # a view, shape (rows, columns, n, m)
        left, right = (cosines(size, delta.device) for size in chunks.shape[2:])
        flat = (left @ chunks @ right.T).flatten(2).flatten(0, 1)
        indices = largest_in_rows(flat, self.top)
        values = flat.gather(1, indices)

        def decoded(components: Tensor) -> Tensor:
            return left.T @ components.view(chunks.shape) @ right

        chunks -= decoded(torch.zeros_like(flat).scatter_(1, indices, values))
        entries = (values, indices.to(torch.int16))
        received = yield Gather(join(*entries), entries=values.numel())
        total, senders = torch.zeros_like(flat), torch.zeros_like(flat)
        for message in received:
            values, indices = split(message, *entries)
            total.scatter_add_(1, indices.long(), values)
            senders.scatter_add_(1, indices.long(), torch.ones_like(values))
        self._chunks(bucket.gradient.view(rows, -1)).copy_(decoded(total / senders.clamp(min=1)))

    def _send_entries(self, delta: Tensor, bucket: Bucket, context: StepContext) -> Generator[Sum, Tensor, None]:
        """Send entries of ``delta``, and write their means over all workers to the bucket."""
        stride = min(max(1, self.chunk**2 // self.top), bucket.size)
        if self.pick == "stride":
            indices = torch.arange((context.step - 1) % stride, bucket.size, stride, device=delta.device)
        else:
            drawn = generator(delta.device, context.step, bucket.index)
            indices = torch.randperm(bucket.size, generator=drawn, device=delta.device)[: -(-bucket.size // stride)]
        values = delta[indices]
        delta.index_fill_(0, indices, 0)
        total = yield Sum(values)
        bucket.gradient.zero_().index_copy_(0, indices, total / context.workers)

    def _chunks(self, matrix: Tensor) -> Tensor:
        n, m = (max(d for d in range(1, self.chunk + 1) if length % d == 0) for length in matrix.shape)
        return matrix.view(matrix.shape[0] // n, n, matrix.shape[1] // m, m).transpose(1, 2)
