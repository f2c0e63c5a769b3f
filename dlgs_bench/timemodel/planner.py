"""Which layers are exchanged together, by what that costs: pure functions (sizes, costs) -> plan. No torch."""

from collections.abc import Callable, Sequence

import numpy as np

from dlgs_bench.buckets import Plan, fixed
from dlgs_bench.timemodel.timeline import Costs, schedule

TOLERANCE = 1e-3  # of an iteration


def _merge_where(sizes: Sequence[int], better: Callable[[Plan, Plan], bool]) -> Plan:
    """From layer 0 on, merge each group with its following layer if ``better(merged, apart)``."""
    done: Plan = []
    group = (0, 1)
    for i in range(1, len(sizes)):
        rest = [(j, j + 1) for j in range(i + 1, len(sizes))]
        merged, apart = (group[0], i + 1), [group, (i, i + 1)]
        if better([*done, merged, *rest], [*done, *apart, *rest]):
            group = merged
        else:
            done.append(group)
            group = (i, i + 1)
    return [*done, group]


def paper(sizes: Sequence[int], costs: Costs) -> Plan:
    """Algorithm 2: merge layer l into l - 1 if the iteration (eq. 7) gets shorter. Greedy, O(L^2)."""

    def better(merged: Plan, apart: Plan) -> bool:
        return schedule(sizes, costs, merged).iteration_s < schedule(sizes, costs, apart).iteration_s

    return _merge_where(sizes, better)


def mg_wfbp(sizes: Sequence[int], costs: Costs) -> Plan:
    """MG-WFBP (Shi, Chu, Li, INFOCOM 2019): merge if the next layer's gradient is ready before waiting
    for it costs more than the start-up of one communication."""
    startup = costs.behind(0)

    def better(merged: Plan, apart: Plan) -> bool:
        at = _differ(merged, apart)
        times = schedule(sizes, costs, apart)
        return times.backward[at + 1][1] - times.communicate[at][0] < startup

    return _merge_where(sizes, better)


def omgs(sizes: Sequence[int], costs: Costs) -> Plan:
    """OMGS-SGD (Shi et al., INFOCOM 2020): merge if what the merged group waits longer is less than what
    its communication saves."""

    def better(merged: Plan, apart: Plan) -> bool:
        at = _differ(merged, apart)
        times = schedule(sizes, costs, apart)
        (start, middle), (_, stop) = apart[at : at + 2]
        one, two = sum(sizes[start:middle]), sum(sizes[middle:stop])
        idle_until = times.communicate[at][0] - times.sparsify[at][1]
        next_backward = times.backward[at + 1][1] - times.backward[at + 1][0]
        sparsify, communicate = costs.sparsify_group, costs.behind
        apart_s = sparsify(sizes[start:middle]) + sparsify(sizes[middle:stop])
        longer = next_backward + sparsify(sizes[start:stop]) - apart_s - idle_until
        return longer < communicate(one) + communicate(two) - communicate(one + two)

    return _merge_where(sizes, better)


def _differ(merged: Plan, apart: Plan) -> int:
    """The place of the group that only ``merged`` has."""
    return next(i for i, group in enumerate(merged) if apart[i] != group)


def exact(sizes: Sequence[int], costs: Costs) -> Plan:
    """The best plan under the model, within ``TOLERANCE`` of the iteration where communications wait for a core.

    How long they wait depends on when computing ends, which only a whole plan knows. If it ended at the beginning of a
    span, no plan that ends computing within the span would be slower than it is; so the best of these is a bound.
    A span is cut in two until its bound is no better than the best plan found.
    """
    found, least = [], np.inf
    spans = [(costs.forward_s + sum(costs.backward_s), np.inf)]
    while spans:
        first, last = spans.pop()
        bound, plan = _best_within(sizes, costs, first, last)
        if bound >= least:
            continue
        times = schedule(sizes, costs, plan)
        if times.iteration_s < least:
            found, least = plan, times.iteration_s
        if bound < least * (1 - TOLERANCE):
            middle = (first + times.iteration_s - times.communication_s) / 2
            spans += [(middle, last), (first, middle)]
    return found


def _best_within(sizes: Sequence[int], costs: Costs, first: float, last: float) -> tuple[float, Plan]:
    """Of all plans that end computing by ``last``, the best one as if it ended at ``first``, and its iteration; with
    infinity if there is none. A dynamic program over where the last group starts.

    What comes after layer j depends on the groups before it only through when computing and when
    communicating ended. Of those pairs only the ones that no other beats in both matter: per j
    that Pareto front is kept, with the way back.
    """
    total = np.concatenate([[0], np.cumsum(sizes)])
    backward = np.concatenate([[0.0], np.cumsum(costs.backward_s)])
    selected = np.concatenate([[0.0], np.cumsum([costs.sparsify(d) for d in sizes])])
    # A state: computing ended, communicating ended, start of the last group, state before it.
    fronts = [np.array([[costs.forward_s, 0.0, -1, -1]])]
    for stop in range(1, len(sizes) + 1):
        start = np.repeat(np.arange(stop), [len(front) for front in fronts])
        before = np.concatenate([np.arange(len(front)) for front in fronts])
        states = np.concatenate(fronts)
        entries = total[stop] - total[start]
        sparsify_s = selected[stop] - selected[start] if costs.per_layer else costs.sparsify(entries)
        computed = states[:, 0] + backward[stop] - backward[start] + sparsify_s
        sent = costs.has_core(np.maximum(computed, states[:, 1]), first) + costs.communicate(entries)
        if stop == len(sizes):  # only the last group's latency is waited for
            sent = sent + costs.latency(entries)
        else:  # and only the others are sent while something is computed
            computed = computed + costs.taken(entries)
        order = np.lexsort((sent, computed))
        order = order[computed[order] <= last]
        best_before = np.minimum.accumulate(np.concatenate([[np.inf], sent[order]]))[:-1]
        kept = order[sent[order] < best_before]
        fronts.append(np.stack([computed[kept], sent[kept], start[kept], before[kept]], axis=1))
    stop = len(sizes)
    if not len(fronts[stop]):
        return np.inf, []
    place = int(fronts[stop][:, 1].argmin())
    bound, plan = fronts[stop][place, 1], []
    while stop:
        _, _, start, place_before = fronts[stop][place]
        plan.append((int(start), stop))
        stop, place = int(start), int(place_before)
    return bound, plan[::-1]


def adaptive_ratios(sizes: Sequence[int], costs: Costs, ratio: float) -> list[float]:
    """LAGS's own choice (Shi et al., ECAI 2020, Section 5): per layer the largest ratio whose communication
    hides behind the next layer's backward, and at least ``ratio``, for which ``costs`` were measured.

    The time that grows with the size is taken as proportional to what is sent. Nothing hides the last layer's.
    """
    startup = costs.behind(0)
    ratios = []
    for size, hidden in zip(sizes, [*costs.backward_s[1:], 0.0], strict=True):
        grows = costs.behind(size) - startup
        left = hidden - costs.sparsify(size) - startup
        fits = ratio * left / grows if grows > 0 else float(left >= 0)
        ratios.append(min(1.0, max(ratio, fits)))
    return ratios


def planners(most: int) -> dict[str, Callable[[Sequence[int], Costs], Plan]]:
    """All planners by name; ``most``: entries of a group of the planner "size"."""
    by_size = {name: lambda sizes, costs, group=group: group(sizes) for name, group in fixed(most).items()}
    return by_size | {"paper": paper, "mg-wfbp": mg_wfbp, "omgs": omgs, "exact": exact}
