"""Iterations on a network: their duration, what limits them, where a method gains. No torch, no pandas.

A model is anything that predicts iterations: from calibrations (``predict``) or from a job's profile (``job_advice``).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from dlgs_bench.timemodel.curves import Curve
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.timeline import Costs

LEAST_SAVED = 0.05  # of an iteration: what would save less does not limit it
COMPUTING = "computing"
RATES_MBIT = np.geomspace(1, 1e6, 25).tolist()  # at which a break-even is looked for


class Model(Protocol):
    """The time model of one job and one method."""

    def iteration_s(self, there: Network) -> float: ...

    def saved(self, there: Network) -> dict[str, float]: ...


class Variants(Model, Protocol):
    """A model whose dense sums can be made in several ways."""

    def ways(self, workers: int) -> list: ...


def iteration_s(known: Model, there: Network, slowdown: float = 1.0) -> float:
    """One iteration ``there``, on nodes that compute, select and handle messages ``slowdown`` times as fast as this
    machine."""
    return known.iteration_s(_slowed(there, slowdown)) / slowdown


def predicted(known: Model, there: Network, slowdown: float = 1.0) -> dict:
    """As ``iteration_s``, with what limits it (``limit``) and how much shorter it would be if that cost nothing
    (``limit_s``)."""
    whole_s, saved = iteration_s(known, there, slowdown), known.saved(_slowed(there, slowdown))
    what = max(saved, key=saved.__getitem__)
    limits = saved[what] / slowdown >= LEAST_SAVED * whole_s
    limit = {"limit": what, "limit_s": saved[what] / slowdown} if limits else {"limit": COMPUTING, "limit_s": math.nan}
    return {"iteration_s": whole_s} | limit


def fastest_s(known: Variants, there: Network, slowdown: float = 1.0) -> float:
    """As ``iteration_s``, by the collective that is the fastest there."""
    return min(iteration_s(way, there, slowdown) for way in known.ways(there.workers))


def _slowed(there: Network, slowdown: float) -> Network:
    """The network over which this machine computes and communicates in the proportion of those nodes."""
    return Network(there.workers, there.rate_mbit / slowdown, there.latency_ms * slowdown)


def break_even_mbit(dense: Model, own: Model, there: Network, speedup: float = 1.0) -> float:
    """The rate of the links below which ``own`` is predicted to have more than this ``speedup``, in Mbit/s.

    Infinite if it has at every rate, 0 if at none. If it crosses the speed-up several times, the highest crossing
    counts. ``there``: workers and latency; its rate is not used.
    """

    def gain(rate_mbit: float) -> float:
        network = replace(there, rate_mbit=rate_mbit)
        return math.log(dense.iteration_s(network) / own.iteration_s(network) / speedup)

    above, faster_rate = math.nan, RATES_MBIT[-1]
    for rate in RATES_MBIT[::-1]:  # from the fastest links down: planning takes seconds for a deep model
        here = gain(rate)
        if here > 0:
            if math.isnan(above):
                return math.inf
            return rate * (faster_rate / rate) ** (here / (here - above))  # a line over the logarithm of the rate
        above, faster_rate = here, rate
    return 0.0


def saved(costs: Costs, unlimited: Costs, timed: Callable[[Costs], float]) -> dict[str, float]:
    """By how many seconds ``timed(costs)`` would be shorter if one thing cost nothing.

    ``unlimited``: the costs over a link of infinite rate. "selection": finding and packing what is sent; "link": the
    bytes on the busiest link; "messages": what each costs however small it is, in latency and in the processors.
    """
    nothing = Curve((1.0,), (0.0,))
    turn = costs.communicate
    without = {
        "selection": replace(costs, sparsify=nothing),
        "link": unlimited,
        "messages": replace(
            costs,
            communicate=Curve(turn.entries, tuple(seconds - turn.seconds[0] for seconds in turn.seconds)),
            latency=nothing,
            contention_s=0.0,
        ),
    }
    whole_s = timed(costs)
    return {what: whole_s - timed(other) for what, other in without.items()}
