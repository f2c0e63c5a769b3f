"""Gaussian-K: Top-K's threshold as the quantile of a normal distribution, corrected a few times."""

from dataclasses import dataclass
from statistics import NormalDist

from dlgs_bench.exchange import Estimator, Threshold, TopK
from dlgs_bench.exchange.magnitudes import count_at_least
from dlgs_bench.exchange.quantisation import norms


@dataclass
class GaussianK(Estimator):
    """No sort: mean and deviation give h (Shi et al., Understanding Top-k Sparsification in Distributed Deep Learning,
    arXiv 1911.08772, 2019). h is tested at most three times. After the first two tests it is halved if fewer than 2k/3
    entries reach it, or raised by half if more than 4k/3 do. If too many reach the last one, the k largest are sent.
    """

    title = "Gaussian-K"
    scope = "layer"

    def select(self, corrected, bucket, context):
        k = self.k(bucket)
        if bucket.size < self.fewest:
            return TopK(k)
        h = NormalDist().inv_cdf(1 - k / bucket.size / 2) * norms(corrected, bucket.size, 2).item() / bucket.size**0.5
        for tests in (1, 2, 3):
            many, _ = count_at_least(corrected, h)
            if 2 * k / 3 <= many <= 4 * k / 3 or tests == 3:
                break
            h *= 0.5 if many < k else 1.5
        return Threshold(h) if many <= 4 * k / 3 else TopK(k)
