"""PowerSGD: each layer's matrix is approximated by a product of two thin matrices, by one step of power iteration."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, ErrorFeedback, Requests, StepContext
from dlgs_bench.exchange.randomness import generator
from dlgs_bench.exchange.steps import sum_of


@dataclass
class PowerSGD(ErrorFeedback):
    """Low-rank gradients (Vogels, Karimireddy, Jaggi, PowerSGD, NeurIPS 2019, Algorithms 1 and 2).

    M = gradient + residual is a matrix whose rows are the layer's first dimension. A step computes P = orth(sum of M Q)
    and then Q = sum of M^T P, in two dense sums per bucket. The product P Q^T approximates the sum of M. Each step
    starts from the last step's Q with columns of length 1; where a column is 0, the last step's column is kept. The
    first Q is random, and the same on all workers. Each worker computes P and P Q^T, so workers need the same number of
    threads: otherwise their results may differ by rounding. Layers of one dimension are sent uncompressed. Matrices are
    compressed even if rank (rows + columns) exceeds their number of entries; the authors' library sends such matrices
    uncompressed.
    """

    title = "PowerSGD"
    scope = "size"
    cost_depends_on_shapes = True
    conserves_mass = "rounding"
    exact_when = {"rank": 1_000_000}  # noqa: RUF012 - a constant, read by tests
    equal_state = ("factors",)

    rank: Annotated[int, ">= 1"] = 2
    seed: Annotated[int, ">= 0"] = 0
    factors: dict[int, list[Tensor]] = field(default_factory=dict, init=False, repr=False)  # Q, by bucket and matrix

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2 if any(len(shape) > 1 for shape in bucket.shapes) else 1

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected, shapes = self.accumulate(bucket), bucket.shapes or ((bucket.size,),)
        layers = list(zip(corrected.split(bucket.sizes), bucket.gradient.split(bucket.sizes), shapes, strict=True))
        matrices = [(m.view(shape[0], -1), out.view(shape[0], -1)) for m, out, shape in layers if len(shape) > 1]
        vectors = [(v, out) for v, out, shape in layers if len(shape) < 2]
        q = self.factors.get(bucket.index) or [self._first(m, bucket.index, i) for i, (m, _) in enumerate(matrices)]
        products = [m @ right for (m, _), right in zip(matrices, q, strict=True)]
        totals = yield from sum_of([*products, *(v for v, _ in vectors)])
        for (v, out), total in zip(vectors, totals[len(q) :], strict=True):
            out.copy_(total)
            v.zero_()
        if matrices:
            p = [torch.linalg.qr(product).Q for product in totals[: len(q)]]
            fresh = yield from sum_of([m.T @ left for (m, _), left in zip(matrices, p, strict=True)])
            self.factors[bucket.index] = [_next_factor(*both) for both in zip(fresh, q, strict=True)]
            for (m, out), left, right in zip(matrices, p, fresh, strict=True):
                torch.mm(left, right.T, out=out)
                m.sub_(out, alpha=1 / context.workers)  # each worker subtracts its share of the sum
        return bucket.gradient

    def _first(self, matrix: Tensor, *position: int) -> Tensor:
        """The first Q of a matrix; ``position``: its bucket, and its index in the bucket."""
        rows, columns = matrix.shape
        numbers = generator(matrix.device, self.seed, *position)
        size = (columns, min(self.rank, rows, columns))
        return torch.randn(size, generator=numbers, dtype=matrix.dtype, device=matrix.device)


def _next_factor(fresh: Tensor, last: Tensor) -> Tensor:
    """Q for the next step: the columns of ``fresh`` with length 1, or the column of ``last`` where it is 0.

    With a Q of zeros, P has the first unit vectors as columns. Then only the first rows of M count in the next Q. If
    they are always 0, so is Q.
    """
    lengths = torch.linalg.vector_norm(fresh, dim=0, dtype=torch.float64)
    return torch.where(lengths > 0, fresh / lengths, last).to(fresh.dtype)
