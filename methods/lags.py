"""LAGS: the k_l largest entries of each layer's gradient, as soon as the layer's gradient is ready."""

from dataclasses import dataclass

from harness.method import Sparsifier, TopK


@dataclass
class LAGS(Sparsifier):
    """Layer-wise adaptive gradient sparsification at one ratio (Shi et al., ECAI 2020)."""

    scope = "layer"

    def rule(self, bucket, step):
        return TopK(self.k(bucket))
