"""Statistics of timed blocks and launches. No torch, no pandas."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
from numpy.typing import ArrayLike

ANGLES = 20_000  # steps of the integral; the error of quantiles of Student's t is below 1e-4
LEAST_BLOCKS = 3  # with fewer blocks or launches, there is no interval
# The assumed correlation of the logarithms of two schemes' speed-ups in the same launches. Reference sets have 0.35 to
# 0.86. With 0.8, intervals hold at least 95 % of repeats for true correlations of 0.3 to 0.9 (tests/test_stats.py).
CORRELATION = 0.8
CONFIDENCE = 0.95  # the fraction of repeats that should lie in an interval


@dataclass(frozen=True)
class Estimate:
    """A median, and the interval that contains 95 % of repeats, if nothing drifts in between. Of seeds: the mean, and
    the 95 % interval of the mean.

    ``low`` and ``high`` are NaN if there were fewer than ``LEAST_BLOCKS`` blocks, launches or seeds.
    """

    value: float
    low: float
    high: float

    @property
    def enough(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    @property
    def width(self) -> float:
        """The length of the interval divided by the value; infinite if there is no interval."""
        return (self.high - self.low) / self.value if self.enough else math.inf

    def text(self) -> str:
        """The value with its interval, if it has one, such as "1.35 [1.28, 1.43]"."""
        if not self.enough:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Spread:
    """The differences between launches of a run: the standard deviation of logarithms, and its degrees of freedom."""

    deviation: float
    freedom: float

    def margin(self, launches: int) -> float:
        """Half the width of the interval that contains the logarithm of 95 % of repeats of ``launches`` launches."""
        return quantile_of_t(self.freedom) * self.deviation * math.sqrt(2 / launches)


@cache
def quantile_of_t(freedom: float) -> float:
    """The quantile of Student's t that is exceeded with probability (1 - ``CONFIDENCE``) / 2.

    With t = sqrt(freedom) * tan(angle), the density of the angle is proportional to cos(angle) ** (freedom - 1).
    """
    edges = np.linspace(0, math.pi / 2, ANGLES + 1)
    below = np.cumsum(np.cos((edges[1:] + edges[:-1]) / 2) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(np.interp(CONFIDENCE * below[-1], below, edges[1:]))


def pooled(runs: Iterable[Sequence[Sequence[float]]]) -> Spread | None:
    """The pooled spread of launches, from positive values by run, scheme and launch; None if no run has two launches.

    A scheme has too few launches to estimate its own spread, and schemes of one model and topology have similar
    spreads. Schemes that were timed together in the same launches are correlated: the variance of the squares of m
    schemes is 1 + (m - 1) r^2 times as large as if they were independent, where r is the correlation of any two. The
    degrees of freedom follow from the variance of all squares (Satterthwaite).
    """
    squares, launched, inflated = 0.0, 0, 0.0
    for schemes in runs:
        logs = np.log(np.asarray(schemes, float))
        schemes, launches = logs.shape
        squares += float(((logs - logs.mean(axis=1, keepdims=True)) ** 2).sum())
        launched += schemes * (launches - 1)
        inflated += schemes * (launches - 1) * (1 + (schemes - 1) * CORRELATION**2)
    return Spread(math.sqrt(squares / launched), launched**2 / inflated) if launched else None


def relaunched(values: Sequence[float], spread: Spread) -> Estimate:
    """The geometric mean of positive values, one per launch, with the interval of a repeat with as many launches."""
    margin = spread.margin(len(values)) if spread.freedom >= LEAST_BLOCKS - 1 else math.nan
    return _around(float(np.log(np.asarray(values, float)).mean()), margin)


def unpaired(one: Estimate, other: Estimate) -> Estimate:
    """``one`` divided by ``other``, with the interval of a repeat of both. Their logarithms vary independently."""
    value = one.value / other.value
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


def amortised_by(
    keys: Sequence, values: ArrayLike, phases: ArrayLike, shares: ArrayLike, means: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """``amortised``, faster, for each group of iterations with equal ``keys``, sorted by the keys.

    All other arguments except ``means`` are columns with one entry per iteration, too. ``keys``: numbers; NaN is a key
    of its own and the last. ``phases``: the index of each iteration's phase. ``means``: average each phase
    instead of taking its median. Returns the index of one iteration of each group, and the values.
    """
    keys = [np.where(np.isnan(key), np.inf, key) for key in keys]
    values, phases, shares = map(np.asarray, (values, phases, shares))
    order = np.lexsort((values, phases, *reversed(keys)))
    new_group = np.any([_changes(key[order]) for key in keys], axis=0)
    starts = np.flatnonzero(new_group | _changes(phases[order]))  # of each phase of each group
    ends = np.append(starts[1:], len(order))
    if means:
        middles = np.add.reduceat(values[order], starts) / (ends - starts)
    else:
        middles = (values[order[(starts + ends - 1) // 2]] + values[order[(starts + ends) // 2]]) / 2
    share, group = shares[order[starts]], np.cumsum(new_group[starts]) - 1
    firsts = order[starts[new_group[starts]]]
    return firsts, np.bincount(group, share * middles) / np.bincount(group, share)


def _changes(column: np.ndarray) -> np.ndarray:
    """Whether each entry differs from the entry before it; the first entry does."""
    return np.append(True, column[1:] != column[:-1])[: len(column)]


def repeatable(values: Sequence[float]) -> Estimate:
    """The median of positive values, one per block of one launch, with the interval of a repeat.

    A repeat has the same error as this measurement. So the interval of their difference is sqrt(2) times as wide as the
    interval of the median. The standard error of the median of n Gaussian logarithms is at most their standard
    deviation times sqrt(pi / (2 n + pi - 2)). Student's t accounts for the deviation being estimated from n values.
    """
    logs = np.log(np.asarray(values, float))
    n, margin = len(logs), math.nan
    if n >= LEAST_BLOCKS:
        error = float(logs.std(ddof=1)) * math.sqrt(math.pi / (2 * n + math.pi - 2))
        margin = quantile_of_t(n - 1) * math.sqrt(2) * error
    return _around(float(np.median(logs)), margin)


def mean_of_seeds(values: Sequence[float]) -> Estimate:
    """The geometric mean of positive values, one per seed, with the 95 % interval of this mean (Student's t).

    A statement about accuracy is about the mean over seeds, so this is not the interval of a repeat.
    """
    logs = np.log(np.asarray(values, float))
    n = len(logs)
    margin = quantile_of_t(n - 1) * float(logs.std(ddof=1)) / math.sqrt(n) if n >= LEAST_BLOCKS else math.nan
    return _around(float(logs.mean()), margin)


def _around(middle: float, margin: float) -> Estimate:
    """The estimate from a logarithm and its margin. The margin is NaN if there is no interval."""
    return Estimate(math.exp(middle), math.exp(middle - margin), math.exp(middle + margin))
