"""Gaussian-K: the threshold is a quantile of a normal distribution, corrected up to two times."""

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from dlgs_bench.exchange import Bucket, Estimator, StepContext, Threshold, TopK
from dlgs_bench.exchange.magnitudes import count_at_least
from dlgs_bench.exchange.quantisation import norms


@dataclass
class GaussianK(Estimator):
    """Estimate the threshold h from the standard deviation, without sorting (Shi et al., Understanding Top-k
    Sparsification in Distributed Deep Learning, arXiv 1911.08772, 2019).

    h is tested at most three times. After the first two tests it is halved if fewer than 2k/3 entries reach it, and
    multiplied by 1.5 if more than 4k/3 entries reach it. If the number that reaches the third h is also outside 2k/3 to
    4k/3, the k largest entries are sent; the authors send what reaches it if it is fewer. At ratio 0.01 this is the
    usual case, since the factors step over the range: the method is then a Top-K of each layer, after three passes. The
    mean of the entries is taken as 0; the authors compute it.
    """

    title = "Gaussian-K"
    scope = "layer"

    def select(self, corrected: Tensor, bucket: Bucket, context: StepContext) -> TopK | Threshold:
        k = self.k(bucket)
        if bucket.size < self.fewest:
            return TopK(k)
        h = NormalDist().inv_cdf(1 - k / bucket.size / 2) * norms(corrected, bucket.size, 2).item() / bucket.size**0.5
        for _ in range(3):
            many, _ = count_at_least(corrected, h)
            if 2 * k / 3 <= many <= 4 * k / 3:
                return Threshold(h)
            h *= 0.5 if many < k else 1.5
        return TopK(k)
