"""Global Top-K: the k largest entries of the whole model's gradient, after backward ends."""

from dataclasses import dataclass

from harness.exchange import Sparsifier, TopK


@dataclass
class GlobalTopK(Sparsifier):
    """One selection over all parameters; nothing overlaps backward (paper, Section 1)."""

    title = "Top-K"
    scope = "model"

    def rule(self, bucket, at):
        return TopK(self.k(bucket))
