"""Dion2: the rows of the momentum with the largest norms are summed and orthonormalised; the others wait."""

import math
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor
from torch.optim import _muon

from dlgs_bench.exchange import Bucket, Method, Requests, StepContext, Sum
from dlgs_bench.exchange.steps import state_for


@dataclass
class Dion2(Method):
    """Muon on a fraction of the rows (Ahn et al., Dion2, arXiv 2512.16928, 2025), with a momentum on each worker.

    The momentum of a layer is a matrix; its shorter side counts as rows. Each worker adds its gradient to its momentum.
    The rows with the largest 1-norms are summed over the workers, orthonormalised and applied. Each worker multiplies
    these rows of its momentum by ``decay``. The other rows are kept, as in error feedback. Example: with
    ``fraction=0.25``, a layer of 64 x 576 entries sends 16 rows of 576 entries, and one norm for each of its 64 rows.

    The authors select the rows by the norms of the mean momentum; here by the sum of the workers' norms, so that the
    mean need not be sent. As in this project's Muon, an update is scaled by 0.2 sqrt(the longer side), so that learning
    rates are as large as with AdamW. The authors train vectors, embeddings and the last layer with AdamW. Here all
    layers follow one rule, and a vector is a matrix of one row. The optimizer's momentum is off, and its weight decay
    is applied to the weights directly. With ``orthonormal=False``, the mean of the rows is applied.
    """

    title = "Dion2"
    scope = "layer"
    cost_depends_on_shapes = True
    owns_momentum = True
    exact_when = {"fraction": 1.0, "orthonormal": False}  # noqa: RUF012 - a constant, read by tests
    conserves_mass = "bits"
    conserves_when = {"decay": 0.0, "orthonormal": False}  # noqa: RUF012 - a constant, read by tests
    summed_state = ("momenta",)

    fraction: Annotated[float, "> 0", "<= 1"] = 0.25
    decay: Annotated[float, ">= 0", "<= 1"] = 0.95
    orthonormal: bool = True
    momenta: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        rows = len(_matrix(bucket.gradient, bucket))
        return 2 if self._k(rows) < rows else 1

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        momentum = _matrix(self.residual(bucket).add_(bucket.gradient), bucket)
        if (k := self._k(len(momentum))) < len(momentum):
            norms = yield Sum(momentum.abs().sum(1))
            chosen = norms.topk(k).indices
        else:
            chosen = torch.arange(k, device=momentum.device)
        rows = momentum[chosen]
        momentum.index_copy_(0, chosen, rows * self.decay)
        total = (yield Sum(rows.reshape(-1))).view(rows.shape)
        if self.orthonormal:
            total = _orthonormalised(total) * (0.2 * math.sqrt(max(momentum.shape)))
        _matrix(bucket.gradient.zero_(), bucket).index_copy_(0, chosen, total)
        return bucket.gradient

    def residual(self, bucket: Bucket) -> Tensor:
        """This worker's momentum, shape (d,)."""
        return state_for(self.momenta, bucket.index, bucket.gradient)

    def _k(self, rows: int) -> int:
        return math.ceil(self.fraction * rows * (1 - 1e-12))  # 0.55 * 100 is above 55


def _matrix(flat: Tensor, bucket: Bucket) -> Tensor:
    """The layer in ``flat`` as a matrix that has at most as many rows as columns; a view of ``flat``."""
    shape = bucket.shapes[0] if bucket.shapes else ()
    matrix = flat.view(shape[0] if shape else 1, -1)
    return matrix if len(matrix) <= matrix.shape[1] else matrix.T


def _orthonormalised(rows: Tensor) -> Tensor:
    """The matrix with about orthonormal rows that is nearest to ``rows``, by torch's Newton-Schulz iteration."""
    coefficients = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C)
    scaled = rows / rows.abs().max().clamp(min=torch.finfo(rows.dtype).tiny)  # the iteration squares entries
    ortho = _muon._zeropower_via_newtonschulz(scaled, coefficients, _muon.DEFAULT_NS_STEPS, _muon.EPS)
    return ortho.to(rows.dtype)
