"""Iterations on a network: their duration, what limits them, where a method gains. No torch, no pandas.

A model predicts iterations, from calibrations (``predict``) or from a job's profile (``job_advice``).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Protocol, cast

import numpy as np

from dlgs_bench.timemodel.cost_curve import Curve
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.timeline import Costs

LEAST_SAVED = 0.05  # share of an iteration: a part that would save less does not limit it
COMPUTING = "computing"
# The words for what limits an iteration: a key of ``saved``, or ``COMPUTING``.
LIMITS = {
    "selection": "selection",
    "link": "bytes on the links",
    "messages": "number of messages",
    "handling": "handling of bytes",
    COMPUTING: "computing",
}
REACHED = 0.9  # utilisation from which on communication counts as hidden
UTILISATIONS = (0.5, 0.75, 0.9)
SLOWEST_MBIT, FASTEST_MBIT = 1e-3, 1e9  # limits of the search for a rate
RATES_MBIT = np.geomspace(1, FASTEST_MBIT, 37).tolist()  # at which a break-even is searched for
NEAR = 1.02  # factor between the two rates around a break-even, between which the gain is taken as a line


class Model(Protocol):
    """The time model of one job and one method."""

    def iteration_s(self, there: Network) -> float: ...

    def saved(self, there: Network) -> dict[str, float]: ...


class Variants(Model, Protocol):
    """A model whose dense sums can be made by several collectives."""

    def collective_variants(self, workers: int) -> list: ...


def iteration_s(model: Model, there: Network, node_speed: float = 1.0) -> float:
    """The time of an iteration on the network ``there``.

    ``node_speed``: the speed of a node divided by the speed of this machine. It applies to computing, to selection and
    to the handling of messages.
    """
    return model.iteration_s(seen_from_here(there, node_speed)) / node_speed


def predicted(model: Model, there: Network, node_speed: float = 1.0) -> dict:
    """The result of ``iteration_s``, the part that limits it (``limit``), and the seconds it costs (``limit_s``)."""
    whole_s, saved = iteration_s(model, there, node_speed), model.saved(seen_from_here(there, node_speed))
    what = max(saved, key=saved.__getitem__)
    limits = saved[what] / node_speed >= LEAST_SAVED * whole_s
    limit = (
        {"limit": what, "limit_s": saved[what] / node_speed} if limits else {"limit": COMPUTING, "limit_s": math.nan}
    )
    return {"iteration_s": whole_s} | limit


def fastest_s(model: Variants, there: Network, node_speed: float = 1.0) -> float:
    """The result of ``iteration_s`` with the fastest collective."""
    return min(iteration_s(variant, there, node_speed) for variant in model.collective_variants(there.workers))


def seen_from_here(there: Network, node_speed: float) -> Network:
    """The network on which this machine has the other nodes' ratio of computation to communication."""
    return Network(there.workers, there.rate_mbit / node_speed, there.latency_ms * node_speed)


def break_even_mbit(dense: Model, own: Model, there: Network, speedup: float = 1.0) -> float:
    """The rate of the links, in Mb/s, below which ``own`` is predicted to have more than this ``speedup``.

    Infinity if it has more at every rate, 0 if it has not over slow links. Otherwise as ``paying_mbit``.
    """
    slowest, fastest = paying_mbit(dense, own, there, speedup)
    return 0.0 if slowest else fastest


def paying_mbit(dense: Model, own: Model, there: Network, speedup: float = 1.0) -> tuple[float, float]:
    """The rates of the links, in Mb/s, between which ``own`` is predicted to have more than this ``speedup``.

    (0, infinity) if it has more at every rate, (0, 0) if it has at no rate. With many workers a gather sends more bytes
    than a ring and waits less often, so a method may gain over fast links only. If there are several ranges, the
    fastest counts. ``there``: workers and latency; its rate is not used.
    """

    @cache
    def gain(rate_mbit: float) -> float:
        network = replace(there, rate_mbit=rate_mbit)
        return math.log(dense.iteration_s(network) / own.iteration_s(network) / speedup)

    def crossing(low: float, high: float, above: Callable[[float], bool]) -> float:
        low, high = bisected(low, high, above, NEAR)
        return low * (high / low) ** (gain(low) / (gain(low) - gain(high)))  # a line over the rate's logarithm

    # From the fastest links down: planning a deep model takes seconds.
    pays = next((n for n in reversed(range(len(RATES_MBIT))) if gain(RATES_MBIT[n]) > 0), None)
    if pays is None:
        return 0.0, 0.0
    fastest = math.inf
    if pays < len(RATES_MBIT) - 1:
        fastest = crossing(RATES_MBIT[pays], RATES_MBIT[pays + 1], lambda rate: gain(rate) <= 0)
    if gain(RATES_MBIT[0]) > 0:
        return 0.0, fastest
    lost = next(n for n in reversed(range(pays)) if gain(RATES_MBIT[n]) <= 0)
    return crossing(RATES_MBIT[lost], RATES_MBIT[lost + 1], lambda rate: gain(rate) > 0), fastest


def needed_mbit(alone_s: float, iteration: Callable[[Network], float], there: Network, least: float = REACHED) -> float:
    """The lowest rate of the links, in Mb/s, at which computing is at least the part ``least`` of an iteration.

    0 if every rate is enough, infinite if none is. ``alone_s``: seconds of computing in an iteration.
    ``iteration``: its seconds on a network. ``there``: workers and latency; its rate is not used.
    """
    return lowest_mbit(there, lambda network: alone_s / iteration(network) >= least)


def lowest_mbit(there: Network, enough: Callable[[Network], bool]) -> float:
    """The lowest rate of the links that is ``enough``; 0 if every rate is, infinite if none is."""
    low, high = SLOWEST_MBIT, FASTEST_MBIT
    if enough(replace(there, rate_mbit=low)):
        return 0.0
    if not enough(replace(there, rate_mbit=high)):
        return math.inf
    return bisected(low, high, lambda rate: enough(replace(there, rate_mbit=rate)), 1.001)[1]


def bisected(low: float, high: float, above: Callable[[float], bool], near: float) -> tuple[float, float]:
    """Two rates at most the factor ``near`` apart: not ``above``, and ``above``. ``low`` and ``high`` are like them."""
    while high / low > near:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if above(middle) else (middle, high)
    return low, high


def local_steps(alone_s: float, exchange_s: float, least: float) -> int:
    """The number of local steps between two exchanges of weights that makes the utilisation at least ``least``.

    ``alone_s``: of one step; ``exchange_s``: of an exchange, during which workers do not compute.
    """
    return max(1, math.ceil(least / (1 - least) * exchange_s / alone_s - 1e-9))


def verdict(low: float, high: float) -> str:
    """The verdict on a predicted speed-up with this interval: "pays", "does not pay" or "cannot be told"."""
    if low > 1:
        return "pays"
    return "does not pay" if high < 1 else "cannot be told"


def saved(costs: Costs, unlimited: Costs, prompt: Costs, timed: Callable[[Costs], float]) -> dict[str, float]:
    """Seconds that ``timed(costs)`` would save if one part cost nothing.

    "selection": selecting and packing the entries that are sent. "link": the bytes on the busiest link. "messages": the
    cost of a message that does not depend on its size, in latency and processor time, and the delay of computing by
    messages. "handling": what processors and memory take for bytes, which is neither of the two. ``unlimited``: the
    costs over a link of infinite rate. ``prompt``: without latency, too.
    """
    nothing = Curve((1.0,), (0.0,))
    occupied, processed = cast(Curve, costs.communicate), cast(Curve, prompt.communicate)
    handling = np.maximum(0.0, processed(np.array(occupied.entries)) - processed.seconds[0])
    without = {
        "selection": replace(costs, sparsify=nothing),
        "link": unlimited,
        "messages": replace(
            costs,
            communicate=Curve(occupied.entries, tuple(seconds - occupied.seconds[0] for seconds in occupied.seconds)),
            latency=nothing,
            contention_s=0.0,
            interference=nothing,
        ),
        "handling": replace(costs, communicate=Curve(occupied.entries, tuple(np.array(occupied.seconds) - handling))),
    }
    whole_s = timed(costs)
    return {part: whole_s - timed(other) for part, other in without.items()}
