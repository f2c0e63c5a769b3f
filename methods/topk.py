"""Global Top-K: the k largest entries of the whole model's gradient are sent after backward."""

from dataclasses import dataclass

from dlgs_bench.exchange import Bucket, Sparsifier, StepContext, TopK


@dataclass
class GlobalTopK(Sparsifier):
    """One selection over all parameters; nothing overlaps backward (DLGS paper, Section 1)."""

    title = "Top-K"
    scope = "model"

    def rule(self, bucket: Bucket, context: StepContext) -> TopK:
        return TopK(self.k(bucket))
