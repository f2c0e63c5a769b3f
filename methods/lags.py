"""LAGS: the k_l largest entries of each layer's gradient, as soon as the layer's gradient is ready."""

from dataclasses import dataclass

from harness.exchange.method import Sparsifier, TopK


@dataclass
class LAGS(Sparsifier):
    """Layer-wise adaptive gradient sparsification (Shi et al., ECAI 2020); at one ratio, as in the paper.

    ``adaptive=True``: each layer has the ratio of its own that the plan gives it, so that its communication
    hides behind the next layer's backward; ``ratio`` is then the smallest.
    """

    scope = "layer"

    adaptive: bool = False

    def rule(self, bucket, step):
        return TopK(self.k(bucket))
