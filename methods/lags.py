"""LAGS: the k_l largest entries of each layer's gradient are sent as soon as the layer's gradient is ready."""

from dataclasses import dataclass

from dlgs_bench.exchange import Bucket, Sparsifier, StepContext, TopK


@dataclass
class LAGS(Sparsifier):
    """Layer-wise adaptive gradient sparsification (Shi et al., ECAI 2020), with one ratio for all layers, as in the
    DLGS paper."""

    title = "LAGS"
    scope = "layer"

    def rule(self, bucket: Bucket, context: StepContext) -> TopK:
        return TopK(self.k(bucket))
