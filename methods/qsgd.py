"""QSGD: every entry rounded at random to one of a few levels of its block's norm."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dlgs_bench.exchange import Bucket, Gather, Method, StepContext
from dlgs_bench.exchange.quantisation import decode, encode, norms


@dataclass
class QSGD(Method):
    """Quantised SGD (Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NIPS
    2017), its codes in ``bits`` bits each instead of Elias codes: s = 2 ** (bits - 1) - 1 levels of either sign.

    Its error is a variance of at most min(d / s^2, sqrt(d) / s) of a block's squared norm, d = ``block``: unbounded
    as a contraction, so error feedback would make it diverge, and there is none.
    """

    title = "QSGD"
    scope = "size"
    unbiased_when = {}  # noqa: RUF012 - a constant, read by tests

    bits: Literal[2, 4, 8] = 4
    block: Annotated[int, ">= 1"] = 512
    seed: int = 0

    def exchange(self, bucket: Bucket, context: StepContext):
        gradient, levels = bucket.gradient, 2 ** (self.bits - 1) - 1
        units, seed = norms(gradient, self.block, 2) / levels, (self.seed, context.step, bucket.index, context.rank)
        message = encode(gradient, units, self.block, self.bits, seed)
        received = yield Gather(message, entries=bucket.size)
        return decode(received, self.block, self.bits, gradient)
