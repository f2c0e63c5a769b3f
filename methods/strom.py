"""Strom's threshold: for each entry whose residual reaches tau, its index and sign are sent in 32 bits."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, Requests, Selects, StepContext, Threshold
from dlgs_bench.exchange.packing import add_signs, pack_signs


@dataclass
class Strom(ErrorFeedback, Selects):
    """r = r + g; where abs(r) >= tau, send tau with the sign of r, and subtract it from r (Strom, Scalable Distributed
    DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015).

    tau is ``threshold``, in units of a worker's gradient. It is fixed: a small tau sends many entries, and a large tau
    delays all entries. The default of 0.5 is from MXNet's 2-bit compression; it is far too large for gradients with
    small entries.
    """

    title = "Strom"
    scope = "size"
    conserves_mass = "rounding"

    threshold: Annotated[float, "> 0"] = 0.5

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        tau = self.threshold / context.workers
        values, indices = self._take(self.residual(bucket), tau, bucket.gradient)
        received = yield Gather(pack_signs(indices, values < 0), entries=len(indices))
        aggregate = bucket.gradient.zero_()
        for message in received:
            add_signs(aggregate, message, tau)
        return aggregate

    def _take(self, corrected: Tensor, tau: float, gradient: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Add ``gradient`` to ``corrected``, and subtract tau where it is reached: the values before, and indices."""
        values, indices = self.selector.take(corrected, Threshold(tau), gradient)
        corrected.index_copy_(0, indices.long(), values - values.sign() * tau)
        return values, indices

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        def send(corrected: Tensor, drawn: Tensor, step: int) -> None:
            self._take(corrected, self.threshold / workers)

        self.simulate(bucket, send)
