"""DLGS: per bucket, the entries at or above a threshold that Top-K refreshes every s iterations."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from torch import Tensor

from dlgs_bench.exchange import Sparsifier, Threshold, TopK
from dlgs_bench.exchange.magnitudes import count_at_least, indices_at_least
from dlgs_bench.exchange.sparsifier import share


@dataclass
class DLGS(Sparsifier):
    """Dynamic layer-wise gradient sparsification (paper, Section 2, Algorithm 1).

    The threshold is refreshed when (i - 1) mod s == 0, before masking; between refreshes it is
    reused, so the number of entries sent drifts. ``refresh="literal"`` is the printed
    algorithm: the threshold starts at 0 and is refreshed when i mod s == 0, after masking, so that the
    first s iterations send everything. ``within="layer"`` keeps one threshold for each layer of a
    merged group (Section 3.4, step 5) where eq. (6) has one for the group.
    """

    title = "DLGS"
    scope = "plan"
    state = ("thresholds",)

    refresh_every: Annotated[int, ">= 1"] = 32  # s; the paper never gives it
    refresh: Literal["before", "literal"] = "before"
    within: Literal["group", "layer"] = "group"
    density_cap: Annotated[float, "> 0"] = 1.0  # of a bucket at most this part is sent; the paper has no cap
    thresholds: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)

    @property
    def cycle(self) -> int:
        return self.refresh_every

    def phase(self, step):
        turn = step if self.refresh == "literal" else step - 1
        return "refresh" if turn % self.refresh_every == 0 else "reuse"

    def rule(self, bucket, context):
        # A reused threshold is known before the gradient, unless layers or a cap ask for a closer look.
        if self.phase(context.step) == "refresh" or self.within == "layer" or self.density_cap < 1:
            return None
        return Threshold(self.thresholds.get(bucket.index, [0.0])[0])

    def select(self, corrected, bucket, context):
        sizes = bucket.sizes if self.within == "layer" else (bucket.size,)
        thresholds = self.thresholds.get(bucket.index, [0.0] * len(sizes))
        if self.phase(context.step) == "refresh":
            fresh = [self.selector.kth_magnitude(part, self.k(bucket, len(part))) for part in corrected.split(sizes)]
            self.thresholds[bucket.index] = fresh
            thresholds = thresholds if self.refresh == "literal" else fresh
        rule = (
            Threshold(thresholds[0])
            if len(sizes) == 1
            else indices_at_least(corrected, corrected.new_tensor(thresholds), sizes)
        )
        return self._capped(rule, corrected, bucket) if self.density_cap < 1 else rule

    def _capped(self, rule, corrected, bucket):
        """``rule``, or the largest entries alone where it would send more than the cap allows."""
        most = share(self.density_cap, bucket.size)
        chosen = len(rule) if isinstance(rule, Tensor) else count_at_least(corrected, rule.h)[0]
        return TopK(most) if chosen > most else rule
