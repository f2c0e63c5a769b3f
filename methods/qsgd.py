"""QSGD: every entry is rounded at random to one of a few equally spaced levels, from minus to plus its block's norm."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dlgs_bench.exchange import Bucket, Gather, Method, Requests, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, norms


@dataclass
class QSGD(Method):
    """Quantised SGD (Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NIPS
    2017).

    Codes have ``bits`` bits instead of Elias codes: s = 2 ** (bits - 1) - 1 levels of either sign. The variance of the
    error is at most min(d / s^2, sqrt(d) / s) times the squared norm of a block, where d is ``block``. This factor can
    exceed 1, so error feedback would diverge, and the method has none.
    """

    title = "QSGD"
    scope = "size"
    unbiased_when = {}  # noqa: RUF012 - a constant, read by tests

    bits: Literal[2, 4, 8] = 4
    block: Annotated[int, ">= 1"] = 512
    seed: Annotated[int, ">= 0"] = 0

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        gradient, levels = bucket.gradient, 2 ** (self.bits - 1) - 1
        units, seed = norms(gradient, self.block, 2) / levels, (self.seed, context.step, bucket.index, context.rank)
        message = encode(gradient, units, self.block, self.bits, seed)
        received = yield Gather(message, entries=bucket.size)
        return decode(received, self.block, self.bits, gradient)
