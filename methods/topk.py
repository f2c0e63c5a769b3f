"""Global Top-K: the k largest entries of the whole model's gradient, after backward ends."""

from dataclasses import dataclass

from harness.exchange.method import Sparsifier, TopK


@dataclass
class GlobalTopK(Sparsifier):
    """One selection over all parameters; nothing overlaps backward (paper, Section 1)."""

    scope = "model"

    def rule(self, bucket, step):
        return TopK(self.k(bucket))
