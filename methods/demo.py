"""DeMo: of each worker's momentum, the strongest waves of each chunk are sent, and the signs of their mean applied."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Gather, Method, StepContext, Sum
from dlgs_bench.exchange.magnitudes import largest_in_rows
from dlgs_bench.exchange.packing import join, split
from dlgs_bench.exchange.randomness import generator
from dlgs_bench.exchange.steps import state_for
from dlgs_bench.exchange.transforms import cosines


@dataclass
class DeMo(Method):
    """Decoupled momentum (Peng, Quesnelle, Kingma, DeMo, arXiv 2411.19870, 2024).

    delta = decay delta + lr g, in units of the update; each chunk of a layer's matrix, ``chunk`` x ``chunk`` or the
    largest divisors below, goes through a cosine transform (DCT-II); its ``top`` components are taken out of delta and
    sent. A component counts as its mean over the workers that sent it. The optimizer's momentum is off. Weight decay is
    applied to the weights directly, as in the authors' code, and does not join delta.

    ``pick``: with ``"random"`` or ``"stride"``, entries of delta itself are sent, one of n = ``chunk`` ** 2 // ``top``,
    the same on all workers, so no indices travel. They are a random draw, or every n-th entry, shifted by one in each
    step (From et al., DeToNATION, arXiv 2502.06728, 2025; the draw and the shift are ours).
    """

    title = "DeMo"
    scope = "layer"
    owns_momentum = True
    exact_when = {"top": 64 * 64, "sign": False}  # noqa: RUF012 - a constant, read by tests
    state = ("momenta",)

    decay: Annotated[float, ">= 0"] = 0.999
    top: Annotated[int, ">= 1"] = 32
    chunk: Annotated[int, ">= 1"] = 64
    sign: bool = True
    pick: Literal["dct", "random", "stride"] = "dct"
    momenta: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def exchange(self, bucket: Bucket, context: StepContext):
        delta = (
            state_for(self.momenta, bucket.index, bucket.gradient)
            .mul_(self.decay)
            .add_(bucket.gradient, alpha=context.lr)
        )
        send = self._send_waves if self.pick == "dct" else self._send_entries
        yield from send(delta, bucket, context)
        return bucket.gradient.sign_() if self.sign else bucket.gradient.mul_(context.workers / context.lr)

    def _send_waves(self, delta: Tensor, bucket: Bucket, context: StepContext):
        """Take waves out of ``delta``, and write their means over the workers that sent them to the bucket."""
        rows = bucket.shapes[0][0] if bucket.shapes and bucket.shapes[0] else 1
        chunks = self._chunks(delta.view(rows, -1))  # a view, of shape (rows, columns, n, m)
        left, right = (cosines(size, delta.device) for size in chunks.shape[2:])
        flat = (left @ chunks @ right.T).flatten(2).flatten(0, 1)
        places = largest_in_rows(flat, self.top)
        values = flat.gather(1, places)

        def decoded(components: Tensor) -> Tensor:
            return left.T @ components.view(chunks.shape) @ right

        chunks -= decoded(torch.zeros_like(flat).scatter_(1, places, values))
        entries = (values, places.to(torch.int16))
        received = yield Gather(join(*entries), entries=values.numel())
        total, senders = torch.zeros_like(flat), torch.zeros_like(flat)
        for message in received:
            values, places = split(message, *entries)
            total.scatter_add_(1, places.long(), values)
            senders.scatter_add_(1, places.long(), torch.ones_like(values))
        self._chunks(bucket.gradient.view(rows, -1)).copy_(decoded(total / senders.clamp(min=1)))

    def _send_entries(self, delta: Tensor, bucket: Bucket, context: StepContext):
        """Take entries out of ``delta``, and write their means over all workers to the bucket."""
        apart = min(max(1, self.chunk**2 // self.top), bucket.size)
        if self.pick == "stride":
            places = torch.arange((context.step - 1) % apart, bucket.size, apart, device=delta.device)
        else:
            drawn = generator(delta.device, context.step, bucket.index)
            places = torch.randperm(bucket.size, generator=drawn, device=delta.device)[: -(-bucket.size // apart)]
        values = delta[places]
        delta.index_fill_(0, places, 0)
        total = yield Sum(values)
        bucket.gradient.zero_().index_copy_(0, places, total / context.workers)

    def _chunks(self, matrix: Tensor) -> Tensor:
        n, m = (max(d for d in range(1, self.chunk + 1) if length % d == 0) for length in matrix.shape)
        return matrix.view(matrix.shape[0] // n, n, matrix.shape[1] // m, m).transpose(1, 2)
