"""DLGS: in each bucket, the entries that reach a threshold are sent; Top-K refreshes it every s iterations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Sparsifier, StepContext, Threshold, TopK
from dlgs_bench.exchange.async_device import is_async
from dlgs_bench.exchange.magnitudes import count_at_least, indices_at_least
from dlgs_bench.exchange.quantisation import norms
from dlgs_bench.exchange.sparsifier import num_entries
from dlgs_bench.exchange.stationary import stationary_residual

DRIFT = 2  # a checked threshold is refreshed if it sends less than k / 2 or more than 2 k entries


@dataclass
class DLGS(Sparsifier):
    """Dynamic layer-wise gradient sparsification (DLGS paper, Section 2, Algorithm 1).

    The threshold is refreshed when (i - 1) mod s == 0, before masking. Between refreshes it is reused, so the number of
    sent entries drifts. If fewer than k entries are nonzero at a refresh, the threshold is 0. On a CPU, the next step
    then refreshes again. On a GPU it reuses the threshold of 0, and a message has space for at most 1.25 times the
    larger of k and the last count.
    ``refresh="literal"`` is the printed algorithm: the threshold starts at 0 and is refreshed when i mod s == 0, after
    masking, so the first s iterations send all entries. ``within="layer"`` keeps one threshold per layer of a merged
    group (Section 3.4, step 5); eq. (6) has one threshold per group.

    ``reuse`` is not part of the paper. ``"fixed"`` reuses the threshold as the paper does. With ``"rms"`` the reused
    threshold is proportional to the rms of gradient + residual. ``"checked"`` does the same, and refreshes the
    threshold early if fewer than k/2 or more than 2k entries reach it. So every step sends between k/2 and 2k entries,
    unless magnitudes are equal.
    """

    title = "DLGS"
    scope = "plan"
    state = ("thresholds",)

    refresh_every: Annotated[int, ">= 1"] = 32  # s; the paper never gives it
    refresh: Literal["before", "literal"] = "before"
    within: Literal["group", "layer"] = "group"
    reuse: Literal["fixed", "rms", "checked"] = "fixed"
    density_cap: Annotated[float, "> 0"] = 1.0  # the largest fraction of a bucket that is sent; the paper has no cap
    # By bucket. Unless reuse is "fixed", a threshold is divided by the norm of gradient + residual.
    thresholds: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)

    @property
    def cycle(self) -> int:
        return self.refresh_every

    def phase(self, step: int) -> str:
        turn = step if self.refresh == "literal" else step - 1
        return "refresh" if turn % self.refresh_every == 0 else "reuse"

    def rule(self, bucket: Bucket, context: StepContext) -> Threshold | None:
        # A fixed threshold of the whole bucket without a cap does not depend on this step's gradient.
        depends = self.within == "layer" or self.reuse != "fixed" or self.density_cap < 1
        if depends or self.phase(context.step) == "refresh":
            return None
        # Where the host does not wait for the device, all workers must decide alike, so by the step alone.
        if not is_async(bucket.gradient) and not self._known(bucket):
            return None
        return Threshold(self.thresholds.get(bucket.index, [0.0])[0])

    def select(self, corrected: Tensor, bucket: Bucket, context: StepContext) -> Tensor | TopK | Threshold:
        sizes = bucket.sizes if self.within == "layer" else (bucket.size,)
        units = norms(corrected, sizes, 2).tolist() if self.reuse != "fixed" else [1.0] * len(sizes)
        last = self.thresholds.get(bucket.index, [0.0] * len(sizes))
        thresholds = [h * unit for h, unit in zip(last, units, strict=True)]
        refresh = self.phase(context.step) == "refresh" or not self._known(bucket)
        if refresh or (self.reuse == "checked" and self._drifted(thresholds, corrected.split(sizes), bucket)):
            fresh = [self.selector.kth_magnitude(part, self.k(bucket, len(part))) for part in corrected.split(sizes)]
            self.thresholds[bucket.index] = [h / (unit or 1.0) for h, unit in zip(fresh, units, strict=True)]
            thresholds = thresholds if self.refresh == "literal" and refresh else fresh
        rule = (
            Threshold(thresholds[0])
            if len(sizes) == 1
            else indices_at_least(corrected, corrected.new_tensor(thresholds), sizes)
        )
        return self._capped(rule, corrected, bucket) if self.density_cap < 1 else rule

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        if self.within == "group":
            super().warm_start(bucket, workers)
        elif self.error_feedback:  # each layer sends its own k entries
            layers, ratio = bucket.gradient.split(bucket.sizes), self.ratio_of(bucket)
            drawn = [stationary_residual(layer, [len(layer)], ratio) for layer in layers]
            self.residuals[bucket.index] = torch.cat(drawn)

    def _known(self, bucket: Bucket) -> bool:
        """Whether all thresholds can be reused. A threshold is 0 after a refresh with fewer than k nonzero entries.

        The literal algorithm reuses it, and sends all nonzero entries.
        """
        return self.refresh == "literal" or all(self.thresholds.get(bucket.index, [0.0]))

    def _drifted(self, thresholds: list[float], parts: Sequence[Tensor], bucket: Bucket) -> bool:
        """Whether the thresholds would send less than k / 2 or more than 2 k entries."""
        many = sum(count_at_least(part, h)[0] for part, h in zip(parts, thresholds, strict=True))
        asked = sum(self.k(bucket, len(part)) for part in parts)
        return not asked / DRIFT <= many <= asked * DRIFT

    def _capped(self, rule: Tensor | Threshold, corrected: Tensor, bucket: Bucket) -> Tensor | TopK | Threshold:
        """``rule``, or a Top-K of the cap if ``rule`` would send more entries than the cap."""
        most = num_entries(self.density_cap, bucket.size)
        chosen = len(rule) if isinstance(rule, Tensor) else count_at_least(corrected, rule.h)[0]
        return TopK(most) if chosen > most else rule
