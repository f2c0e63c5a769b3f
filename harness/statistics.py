"""Statistics of timed blocks and launches. No torch, no pandas."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np

DRAWS = 4000  # pairs of resampled repeats
T_DRAWS = 100_000  # of Student's t: its quantiles are right to half a per cent
LEAST_BLOCKS = 3  # of fewer, the interval is too narrow one time in four
# Of the logarithms of two schemes' speed-ups in the same launches: they share uncompressed, and each has as much of its
# own.
CORRELATION = 0.5
WITHIN = 0.95  # of all repeats should lie in an interval


@dataclass(frozen=True)
class Estimate:
    """A median, and the 95 % interval of that of a repeat, if nothing drifts in between.

    ``enough``: it comes from so many blocks or launches that the interval may decide something.
    """

    value: float
    low: float
    high: float
    enough: bool = True

    @property
    def width(self) -> float:
        """Of the interval, as a part of the value."""
        return (self.high - self.low) / self.value


@dataclass(frozen=True)
class Spread:
    """How much launches of the same run differ: the standard deviation of logarithms, and its degrees of freedom."""

    deviation: float
    freedom: float

    def margin(self, launches: int) -> float:
        """By how much the logarithm of a repeat of so many launches lies off, at most, in 95 % of all repeats."""
        return _quantile_of_t(self.freedom) * self.deviation * math.sqrt(2 / launches)


@cache
def _quantile_of_t(freedom: float) -> float:
    """The value that Student's t of so many degrees of freedom exceeds in half of the cases outside ``WITHIN``."""
    draws = np.random.default_rng(0).standard_t(freedom, T_DRAWS)
    return float(np.quantile(draws, (1 + WITHIN) / 2))


def pooled(runs: Iterable[Sequence[Sequence[float]]]) -> Spread | None:
    """The spread of launches, from positive values: one per launch, of each scheme of each run; None if each run was
    launched once.

    A scheme is launched too seldom to know its own spread. Schemes of one model and topology are alike in it. Schemes
    that took turns in the same launches vary together, and m of them have fewer degrees of freedom than m times those
    of one: m / (1 + (m - 1) r^2) times (Satterthwaite), where r is the correlation of any two.
    """
    squares, launched, freedom = 0.0, 0, 0.0
    for schemes in runs:
        logs = np.log(np.asarray(schemes, float))
        schemes, launches = logs.shape
        squares += float(((logs - logs.mean(axis=1, keepdims=True)) ** 2).sum())
        launched += schemes * (launches - 1)
        freedom += schemes * (launches - 1) / (1 + (schemes - 1) * CORRELATION**2)
    return Spread(math.sqrt(squares / launched), freedom) if launched else None


def relaunched(values: Sequence[float], spread: Spread) -> Estimate:
    """The geometric mean of positive values, one per launch, with the interval of a repeat of as many launches."""
    middle, margin = float(np.log(np.asarray(values, float)).mean()), spread.margin(len(values))
    return Estimate(*(math.exp(middle + d) for d in (0.0, -margin, margin)), spread.freedom + 1 >= LEAST_BLOCKS)


def unpaired(one: Estimate, other: Estimate) -> Estimate:
    """The quotient of two estimates that are not paired, with the interval of a repeat of both, whose logarithms vary
    independently."""
    value = one.value / other.value
    enough = one.enough and other.enough
    if not (one.low and other.low):
        return Estimate(value, 0.0, float("inf"), enough)
    down = math.hypot(math.log(one.value / one.low), math.log(other.high / other.value))
    up = math.hypot(math.log(one.high / one.value), math.log(other.value / other.low))
    return Estimate(value, value * math.exp(-down), value * math.exp(up), enough)


def amortised(iterations: Iterable[tuple[float, str, float]]) -> float:
    """The median of each phase, weighted by its share of a cycle, from (value, phase, share) of each iteration."""
    by_phase: dict[str, list[float]] = {}
    share_of = {}
    for value, phase, share in iterations:
        by_phase.setdefault(phase, []).append(value)
        share_of[phase] = share
    return sum(share_of[phase] * median(own) for phase, own in by_phase.items()) / sum(share_of.values())


def repeatable(values: Sequence[float]) -> Estimate:
    """The median of positive values, one per block of one launch, with the interval of a repeat.

    A repeat differs from the truth as much as this measurement does, so its interval is wider than that of the
    median itself: the bootstrap draws two sets of blocks and takes how far their medians lie apart. Few blocks
    spread less than many would: the logarithms are stretched by sqrt(n / (n - 1)).
    """
    logs = np.log(np.asarray(values, float))
    n = len(logs)
    middle = float(np.median(logs))
    if n < 2:
        return Estimate(float(np.exp(middle)), 0.0, float("inf"), enough=False)
    drawn = np.random.default_rng(0).integers(0, n, (2, DRAWS, n))
    one, other = np.median(logs[drawn], axis=2)
    apart = np.sort(one - other) * np.sqrt(n / (n - 1))
    tails = (1 - WITHIN) / 2
    low, high = np.quantile(apart, [tails, 1 - tails])
    return Estimate(*(float(np.exp(middle + d)) for d in (0.0, low, high)), n >= LEAST_BLOCKS)
