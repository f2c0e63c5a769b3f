"""Strom's threshold: where the residual has reached tau, tau is sent, in 32 bits with its place."""

from dataclasses import dataclass
from typing import Annotated

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, Selects, StepContext, Threshold
from dlgs_bench.exchange.packing import add_signs, pack_signs


@dataclass
class Strom(ErrorFeedback, Selects):
    """r = r + g; where abs(r) >= tau, send tau with the sign of r and subtract it (Strom, Scalable Distributed DNN
    Training Using Commodity GPU Cloud Computing, Interspeech 2015).

    tau, ``threshold``, is in units of a worker's gradient; it is fixed, so a small one sends much and a large one
    delays all. 0.5 is the default of MXNet's 2-bit compression, and far too large for a gradient of small entries.
    """

    title = "Strom"
    scope = "size"
    conserves_mass = "rounding"

    threshold: Annotated[float, "> 0"] = 0.5

    def exchange(self, bucket: Bucket, context: StepContext):
        tau = self.threshold / context.workers
        corrected = self.residual(bucket)
        values, places = self.selector.take(corrected, Threshold(tau), bucket.gradient)
        corrected.index_copy_(0, places.long(), values - values.sign() * tau)
        received = yield Gather(pack_signs(places, values < 0), entries=len(places))
        aggregate = bucket.gradient.zero_()
        for message in received:
            add_signs(aggregate, message, tau)
        return aggregate
