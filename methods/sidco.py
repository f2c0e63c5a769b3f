"""SIDCo: Top-K's threshold from an exponential distribution, fitted again to what lies above it."""

import math
from dataclasses import dataclass, field

from dlgs_bench.exchange import Estimator, Threshold, TopK
from dlgs_bench.exchange.magnitudes import count_at_least

FIRST = 0.25  # part of the entries that the first fit is to leave
ADAPT_EVERY, TOLERANCE = 5, 0.2


@dataclass
class SIDCo(Estimator):
    """Statistical threshold, no sort (Abdelmoniem et al., SIDCo, MLSys 2021; the exponential fit, Algorithm 1).

    Each stage takes the mean by which entries exceed the threshold so far and raises it by ln(1 / part) of that. Every
    fifth step a bucket that sent over 20 % too few gets a stage more, one that sent too many a stage less. If no entry
    reaches a stage's threshold, the k largest are sent.
    """

    title = "SIDCo"
    scope = "layer"
    state = ("stages", "sent")

    stages: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # of each bucket, not of all
    sent: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)  # over k, since the last change

    def select(self, corrected, bucket, context):
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
            if not fewer:  # magnitudes that are no exponential: their threshold cannot be extrapolated
                return TopK(k)
            h, many, total = raised, fewer, less
        sent.append(many / k)
        if len(sent) == ADAPT_EVERY:
            mean = sum(sent) / len(sent)
            self.stages[bucket.index] = max(1, stages + (mean < 1 - TOLERANCE) - (mean > 1 + TOLERANCE))
            sent.clear()
        return Threshold(h)
