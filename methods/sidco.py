"""SIDCo: the threshold comes from an exponential distribution, fitted in stages to the entries above it."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from dlgs_bench.exchange import Bucket, Estimator, StepContext, Threshold, TopK
from dlgs_bench.exchange.magnitudes import count_at_least

FIRST = 0.25  # the fraction of entries that should reach the threshold of the first stage
ADAPT_EVERY, TOLERANCE = 5, 0.2


@dataclass
class SIDCo(Estimator):
    """A statistical threshold without sorting (Abdelmoniem et al., SIDCo, MLSys 2021; exponential fit, Algorithm 1).

    Each stage computes the mean by which entries exceed the threshold, and raises the threshold by ln(1 / part) times
    this mean, where part is the fraction of these entries that should remain. Every five steps, a bucket whose count is
    more than 20 % below k gets one more stage, and a bucket whose count is more than 20 % above k gets one less. If no
    entry reaches a stage's threshold, the k largest entries are sent.

    A bucket has at most log2(1 / ratio) stages, and two are always possible. More stages cost time and do not lift the
    count of entries with heavy tails. The authors' code has the same limit, but one number of stages for all layers. In
    buckets with fewer than ``fewest`` entries, and if k is at least a quarter of the entries, the k largest entries are
    sent.
    """

    title = "SIDCo"
    scope = "layer"
    state = ("stages", "sent")

    stages: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # by bucket
    sent: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)  # by bucket: recent counts / k

    def select(self, corrected: Tensor, bucket: Bucket, context: StepContext) -> TopK | Threshold:
        k = self.k(bucket)
        ratio = k / bucket.size
        if bucket.size < self.fewest or ratio >= FIRST:
            return TopK(k)
        stages, sent = self.stages.get(bucket.index, 2), self.sent.setdefault(bucket.index, [])
        parts = [FIRST, *[(ratio / FIRST) ** (1 / (stages - 1))] * (stages - 1)] if stages > 1 else [ratio]
        h, many, total = 0.0, bucket.size, count_at_least(corrected, 0.0)[1]
        for part in parts:
            raised = h + (total / many - h) * math.log(1 / part)
            fewer, less = count_at_least(corrected, raised)
            if not fewer:  # the magnitudes are not exponential, so the threshold cannot be extrapolated
                return TopK(k)
            h, many, total = raised, fewer, less
        sent.append(many / k)
        if len(sent) == ADAPT_EVERY:
            mean = sum(sent) / len(sent)
            if mean < 1 - TOLERANCE:
                stages += 1
            elif mean > 1 + TOLERANCE:
                stages -= 1
            self.stages[bucket.index] = min(max(1, stages), max(2, int(math.log2(1 / ratio))))
            sent.clear()
        return Threshold(h)
