"""Planners, which merge layers to buckets by their costs: pure functions (sizes, costs) -> plan. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from dlgs_bench.buckets import Plan, fixed
from dlgs_bench.timemodel.timeline import Costs, schedule

TOLERANCE = 1e-3  # of an iteration


def _merge_where(sizes: Sequence[int], better: Callable[[Plan, Plan], bool]) -> Plan:
    """Merge each group, from layer 0 on, with the next layer if ``better(merged, separate)``."""
    done: list[tuple[int, int]] = []
    group = (0, 1)
    for i in range(1, len(sizes)):
        rest = [(j, j + 1) for j in range(i + 1, len(sizes))]
        merged, separate = (group[0], i + 1), [group, (i, i + 1)]
        if better([*done, merged, *rest], [*done, *separate, *rest]):
            group = merged
        else:
            done.append(group)
            group = (i, i + 1)
    return [*done, group]


def _cached(costs: Costs) -> Costs:
    """``costs`` that compute the cost of each number of entries once: greedy planners ask for the same groups often."""
    sparsify, communicate, interference = map(cache, (costs.sparsify, costs.communicate, costs.interference))
    return replace(costs, sparsify=sparsify, communicate=communicate, interference=interference)


def paper(sizes: Sequence[int], costs: Costs) -> Plan:
    """Algorithm 2 of the paper: merge layer l into l - 1 if the iteration (eq. 7) gets shorter. Greedy, O(L^2)."""
    costs = _cached(costs)
    best_s = schedule(sizes, costs, [(j, j + 1) for j in range(len(sizes))]).iteration_s

    def better(merged: Plan, _separate: Plan) -> bool:
        nonlocal best_s  # the iteration with the plan so far, which is ``_separate``
        merged_s = schedule(sizes, costs, merged).iteration_s
        shorter = merged_s < best_s
        best_s = min(best_s, merged_s)
        return shorter

    return _merge_where(sizes, better)


def mg_wfbp(sizes: Sequence[int], costs: Costs) -> Plan:
    """MG-WFBP (Shi, Chu, Li, INFOCOM 2019): merge if waiting for the next layer's gradient costs less than the
    start-up of one communication."""
    costs = _cached(costs)
    startup = costs.contended(0)

    def better(merged: Plan, separate: Plan) -> bool:
        index = _first_difference(merged, separate)
        times = schedule(sizes, costs, separate)
        return times.backward[index + 1][1] - times.communicate[index][0] < startup

    return _merge_where(sizes, better)


def omgs(sizes: Sequence[int], costs: Costs) -> Plan:
    """OMGS-SGD (Shi et al., INFOCOM 2020): merge if the merged group waits less time than its communication saves."""
    costs = _cached(costs)

    def better(merged: Plan, separate: Plan) -> bool:
        index = _first_difference(merged, separate)
        times = schedule(sizes, costs, separate)
        (start, middle), (_, stop) = separate[index : index + 2]
        one, two = sum(sizes[start:middle]), sum(sizes[middle:stop])
        idle_until = times.communicate[index][0] - times.sparsify[index][1]
        next_backward = times.backward[index + 1][1] - times.backward[index + 1][0]
        sparsify, communicate = costs.sparsify_group, costs.contended
        separate_s = sparsify(sizes[start:middle]) + sparsify(sizes[middle:stop])
        longer = next_backward + sparsify(sizes[start:stop]) - separate_s - idle_until
        return longer < communicate(one) + communicate(two) - communicate(one + two)

    return _merge_where(sizes, better)


def _first_difference(merged: Plan, separate: Plan) -> int:
    """The index of the group that only ``merged`` has."""
    return next(i for i, group in enumerate(merged) if separate[i] != group)


def exact(sizes: Sequence[int], costs: Costs) -> Plan:
    """The best plan under the model, within ``TOLERANCE`` of its iteration if communications wait for a core.

    It takes the messages of a group as one (``Costs.requests``).

    The wait for a core depends on the end of computing, which depends on the whole plan. So the search uses intervals
    of the end of computing. Assuming that computing ends at the start of an interval gives a lower bound for every plan
    that ends within it. Intervals are bisected until no bound is below the best plan.
    """
    costs = replace(costs, requests=1)  # otherwise no bound would reach a plan
    best: Plan = []
    least = np.inf
    intervals = [(costs.forward_s + sum(costs.backward_s), np.inf)]
    while intervals:
        first, last = intervals.pop()
        bound, plan = _best_within(sizes, costs, first, last)
        if bound >= least:
            continue
        times = schedule(sizes, costs, plan)
        if times.iteration_s < least:
            best, least = plan, times.iteration_s
        if bound < least * (1 - TOLERANCE):
            middle = (first + times.iteration_s - times.communication_s) / 2
            intervals += [(middle, last), (first, middle)]
    return best


class _Front(NamedTuple):
    """Partial plans that end before the same layer, one entry per plan. None is later than another in both times.

    ``computed``, ``sent``: the ends of computing and of communication. ``start``: the first layer of the last group.
    ``before``: the index of the plan without its last group, in the front of the layer ``start``.
    """

    computed: np.ndarray
    sent: np.ndarray
    start: np.ndarray
    before: np.ndarray


def _best_within(sizes: Sequence[int], costs: Costs, first: float, last: float) -> tuple[float, Plan]:
    """A lower bound of the iteration over all plans that end computing by ``last``, and the plan that attains it.

    The bound assumes that computing ends at ``first``. It is infinity if there is no such plan.

    This is a dynamic program over the start of the last group. What follows layer j depends on the groups before it
    only through the ends of computing and of communication. So for each j only the Pareto front of these two times is
    kept, with back pointers.
    """
    total = np.concatenate([[0], np.cumsum(sizes)])
    backward = np.concatenate([[0.0], np.cumsum(costs.backward_s)])
    selected = np.concatenate([[0.0], np.cumsum([costs.sparsify(d) for d in sizes])])
    fronts = [_Front(np.array([costs.forward_s]), np.array([0.0]), np.array([-1]), np.array([-1]))]
    for stop in range(1, len(sizes) + 1):
        lengths = [len(front.start) for front in fronts]
        start, before = np.repeat(np.arange(stop), lengths), np.concatenate([np.arange(n) for n in lengths])
        computed = np.concatenate([front.computed for front in fronts])
        sent = np.concatenate([front.sent for front in fronts])
        entries = total[stop] - total[start]
        sparsify_s = selected[stop] - selected[start] if costs.per_layer else costs.sparsify(entries)
        computed = computed + backward[stop] - backward[start] + sparsify_s
        sent = costs.core_free_at(np.maximum(computed, sent), first) + costs.communicate(entries)
        if stop == len(sizes):  # only the latency of the last group is not hidden
            sent = sent + costs.latency(entries)
        else:  # only the other groups are sent while the workers compute
            computed = computed + costs.interference(entries)
        fronts.append(_pareto(_Front(computed, sent, start, before), last))
    ends = fronts[-1].sent
    if not len(ends):
        return np.inf, []
    best = int(ends.argmin())
    return ends[best], _plan_of(fronts, best)


def _pareto(plans: _Front, last: float) -> _Front:
    """The plans that end computing by ``last``, without those that another plan is at least as early as."""
    order = np.lexsort((plans.sent, plans.computed))
    order = order[plans.computed[order] <= last]
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], plans.sent[order]]))[:-1]
    chosen = order[plans.sent[order] < best_before]
    return _Front(*(column[chosen] for column in plans))


def _plan_of(fronts: list[_Front], index: int) -> Plan:
    """The plan with this index in the last front, by following the back pointers."""
    plan: list[tuple[int, int]] = []
    stop = len(fronts) - 1
    while stop:
        front = fronts[stop]
        start = int(front.start[index])
        plan.append((start, stop))
        stop, index = start, int(front.before[index])
    return plan[::-1]


def adaptive_ratios(sizes: Sequence[int], costs: Costs, ratio: float) -> list[float]:
    """The adaptive ratios of LAGS (Shi et al., ECAI 2020, Section 5), one per layer.

    A ratio is the largest whose communication is hidden behind the next layer's backward, and at least ``ratio``, for
    which ``costs`` were measured. We assume that the time which grows with the size is proportional to the sent
    entries. The communication of the last layer is never hidden.
    """
    startup = costs.contended(0)
    ratios = []
    for size, hidden_s in zip(sizes, [*costs.backward_s[1:], 0.0], strict=True):
        grows_s = costs.contended(size) - startup
        available_s = hidden_s - costs.sparsify(size) - startup
        fits = ratio * available_s / grows_s if grows_s > 0 else float(available_s >= 0)
        ratios.append(min(1.0, max(ratio, fits)))
    return ratios


def planners(most: int) -> dict[str, Callable[[Sequence[int], Costs], Plan]]:
    """All planners by name; ``most``: the most entries of a group of the planner "size"."""
    by_size = {name: lambda sizes, costs, group=group: group(sizes) for name, group in fixed(most).items()}
    return by_size | {"paper": paper, "mg-wfbp": mg_wfbp, "omgs": omgs, "exact": exact}
