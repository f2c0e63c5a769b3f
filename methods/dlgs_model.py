"""DLGS with one threshold for the whole model, so that a layer with larger entries sends more of them."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, Sparsifier, StepContext, Threshold
from dlgs_bench.exchange.async_device import is_async
from dlgs_bench.exchange.stationary import stationary_residual

SHIFT = 16  # bits of a magnitude that are ignored: 8 bits of exponent and 7 bits of mantissa remain


@dataclass
class ModelDLGS(Sparsifier):
    """DLGS whose threshold is a magnitude of the whole model instead of one bucket; not part of the paper.

    Every ``refresh_every`` steps, each bucket counts its magnitudes, and is exchanged with the old threshold. The next
    step computes the threshold from the counts of all buckets. So no bucket waits for another, as in DLGS. In the first
    step, each bucket sends its k largest entries. Counts are by the upper bits of a magnitude, so at most 1/128 of the
    threshold is rounded off.
    """

    title = "DLGS, one threshold"
    scope = "plan"
    state = ("threshold", "magnitudes")

    refresh_every: Annotated[int, ">= 1"] = 32  # s
    threshold: float = field(default=0.0, init=False, repr=False)  # 0: not known, or fewer than k entries are not 0
    # By bucket: how many entries have each magnitude. The next step reads the counts.
    magnitudes: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    warmed: dict[int, Bucket] = field(default_factory=dict, init=False, repr=False)  # buckets with a warm start

    @property
    def cycle(self) -> int:
        return self.refresh_every

    def phase(self, step: int) -> str:
        names = {0: "refresh", 1: "new threshold"}  # the second computes the threshold, so it takes longer than others
        return names.get((step - 1) % self.refresh_every, "reuse")

    def rule(self, bucket: Bucket, context: StepContext) -> Threshold | None:
        if bucket.index in self.magnitudes:  # counts of an earlier step
            self._refresh(bucket)
        # Where the host does not wait for the device, all workers must decide alike, so by the step alone.
        reuse = self.phase(context.step) != "refresh" and (self.threshold or is_async(bucket.gradient))
        return Threshold(self.threshold) if reuse else None

    def select(self, corrected: Tensor, bucket: Bucket, context: StepContext) -> Threshold:
        rounded = corrected.view(torch.int32).bitwise_and(2**31 - 1) >> SHIFT
        self.magnitudes[bucket.index] = torch.bincount(rounded, minlength=2 ** (31 - SHIFT))
        return Threshold(self.threshold or self.selector.kth_magnitude(corrected, self.k(bucket)))

    def warm_start(self, bucket: Bucket, workers: int) -> None:
        """Draw the residuals of this bucket and of those before again, since they share the threshold."""
        self.warmed[bucket.index] = bucket
        if self.error_feedback:
            buckets = self.warmed.values()
            gradient = torch.cat([one.gradient for one in buckets])
            drawn = stationary_residual(gradient, [n for one in buckets for n in one.sizes], self.ratio_of(bucket))
            for one, part in zip(buckets, drawn.split([one.size for one in buckets]), strict=True):
                self.residuals[one.index] = part.clone()

    def _refresh(self, bucket: Bucket) -> None:
        """Set the threshold to the largest rounded magnitude that at least k entries of the model reach."""
        total = torch.stack(list(self.magnitudes.values())).sum(dim=0)
        self.magnitudes.clear()
        reach = total.flip(0).cumsum(0)  # the entries that reach each magnitude, the largest first
        k = self.k(bucket, int(reach[-1]))
        magnitude = len(total) - 1 - int(torch.searchsorted(reach, k))
        self.threshold = float(torch.tensor([magnitude << SHIFT], dtype=torch.int32).view(torch.float32))
