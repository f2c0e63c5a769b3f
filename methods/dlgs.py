"""DLGS: per bucket, the entries at or above a threshold that Top-K refreshes every s iterations."""

from dataclasses import dataclass, field
from typing import Literal

from harness.method import Sparsifier, Threshold


@dataclass
class DLGS(Sparsifier):
    """Dynamic layer-wise gradient sparsification (paper, Section 2, Algorithm 1).

    The threshold is refreshed when (i - 1) mod s == 0, before masking; between refreshes it is
    reused, so the number of entries sent drifts. No cap is applied. ``refresh="literal"`` is the printed
    algorithm: the threshold starts at 0 and is refreshed when i mod s == 0, after masking, so that the
    first s iterations send everything.
    """

    scope = "plan"

    refresh_every: int = 32  # s; the paper never gives it
    refresh: Literal["before", "literal"] = "before"
    thresholds: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def cycle(self) -> int:
        return self.refresh_every

    def phase(self, step):
        turn = step if self.refresh == "literal" else step - 1
        return "refresh" if turn % self.refresh_every == 0 else "reuse"

    def rule(self, bucket, step):
        return None if self.phase(step) == "refresh" else Threshold(self.threshold(bucket))

    def select(self, acc, bucket, step):
        fresh = self.selector.kth_magnitude(acc, self.k(bucket))
        used = self.threshold(bucket) if self.refresh == "literal" else fresh
        self.thresholds[bucket.index] = fresh
        return Threshold(used)

    def threshold(self, bucket):
        if self.refresh == "literal":
            self.thresholds.setdefault(bucket.index, 0.0)
        return self.thresholds[bucket.index]

    def state_dict(self):
        return super().state_dict() | {"thresholds": self.thresholds}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.thresholds = dict(state["thresholds"])
