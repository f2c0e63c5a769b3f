"""EF-signSGD: a bit for each entry, its sign, and one number for each layer, the mean of its magnitudes."""

from dataclasses import dataclass

from dlgs_bench.exchange import Bucket, ErrorFeedback, Gather, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, norms, subtract


@dataclass
class EFSign(ErrorFeedback):
    """Signs with error feedback (Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, Algorithm 1).

    Their residual is in units of the update, lr g, this one in g: the two differ where the learning rate drops,
    as theirs then sends what an earlier, larger rate had left over.
    """

    title = "EF-signSGD"
    scope = "size"
    conserves_mass = "rounding"

    def exchange(self, bucket: Bucket, context: StepContext):
        corrected = self.accumulate(bucket)
        means = norms(corrected, bucket.sizes, 1) / corrected.new_tensor(bucket.sizes)
        message = encode(corrected, means, bucket.sizes, bits=1)
        subtract(message, bucket.sizes, 1, corrected)
        received = yield Gather(message, entries=bucket.size)
        return decode(received, bucket.sizes, 1, bucket.gradient)
