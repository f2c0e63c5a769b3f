"""Statistics of timed blocks. No torch, no pandas."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

DRAWS = 4000  # pairs of resampled repeats
WITHIN = 0.95  # of all repeats should lie in an interval


@dataclass(frozen=True)
class Estimate:
    """A median, and the 95 % interval of that of a repeat, if nothing drifts in between."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the interval, as a part of the value."""
        return (self.high - self.low) / self.value


def unpaired(one: Estimate, other: Estimate) -> Estimate:
    """The quotient of two estimates that are not paired, with the interval of a repeat of both, whose logarithms vary
    independently."""
    value = one.value / other.value
    if not (one.low and other.low):
        return Estimate(value, 0.0, float("inf"))
    down = math.hypot(math.log(one.value / one.low), math.log(other.high / other.value))
    up = math.hypot(math.log(one.high / one.value), math.log(other.value / other.low))
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def amortised(iterations: Iterable[tuple[float, str, float]]) -> float:
    """The median of each phase, weighted by its share of a cycle, from (value, phase, share) of each iteration."""
    by_phase: dict[str, list[float]] = {}
    share_of = {}
    for value, phase, share in iterations:
        by_phase.setdefault(phase, []).append(value)
        share_of[phase] = share
    return sum(share_of[phase] * median(own) for phase, own in by_phase.items()) / sum(share_of.values())


def repeatable(values: Sequence[float]) -> Estimate:
    """The median of positive values, one per block, with the interval of a repeat.

    A repeat differs from the truth as much as this measurement does, so its interval is wider than that of the
    median itself: the bootstrap draws two sets of blocks and takes how far their medians lie apart. Few blocks
    spread less than many would: the logarithms are stretched by sqrt(n / (n - 1)).
    """
    logs = np.log(np.asarray(values, float))
    n = len(logs)
    middle = float(np.median(logs))
    if n < 2:
        return Estimate(float(np.exp(middle)), 0.0, float("inf"))
    drawn = np.random.default_rng(0).integers(0, n, (2, DRAWS, n))
    one, other = np.median(logs[drawn], axis=2)
    apart = np.sort(one - other) * np.sqrt(n / (n - 1))
    tails = (1 - WITHIN) / 2
    low, high = np.quantile(apart, [tails, 1 - tails])
    return Estimate(*(float(np.exp(middle + d)) for d in (0.0, low, high)))
