"""EF-signSGD: one bit per entry, its sign, and one number per layer, the mean magnitude, are sent."""

from dataclasses import dataclass

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, Requests, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, norms, subtract


@dataclass
class EFSign(ErrorFeedback):
    """Signs with error feedback (Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, Algorithm 1).

    The authors' residual is in units of the update, lr g; here it is in units of g. The two differ when the learning
    rate drops: the authors' residual still has the scale of the larger rate.
    """

    title = "EF-signSGD"
    scope = "size"
    conserves_mass = "rounding"

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected = self.accumulate(bucket)
        means = norms(corrected, bucket.sizes, 1) / corrected.new_tensor(bucket.sizes)
        message = encode(corrected, means, bucket.sizes, bits=1)
        subtract(message, bucket.sizes, 1, corrected)
        received = yield Gather(message, entries=bucket.size)
        return decode(received, bucket.sizes, 1, bucket.gradient)
