"""The paper's time model (Section 3.1, eqs 2-7): begin and end of every part of an iteration. No torch.

Layers are in the order in which backward finishes them, so layer 0 is the paper's layer L. Groups of merged layers are
(start, stop) ranges in that order.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from dlgs_bench.buckets import Plan
from dlgs_bench.timemodel.cost_curve import Cost, Number

Interval = tuple[float, float]


@dataclass(frozen=True)
class Costs:
    """The inputs of the time model, in seconds.

    ``forward_s``: t_f. ``backward_s``: t_b per layer. ``sparsify``, ``communicate``: t_s and t_c of a group, as
    functions of its number of entries before sparsification.

    Three costs are not in the paper, whose nodes compute on GPUs; there they are 0:

    - ``latency``: the time of a group's communication after it has left the link. It overlaps with the next group on
      the link, so only the latency of the last group is not hidden.
    - ``contention_s``: the time that a communication waits for a core if it begins while the workers compute. The wait
      ends with computing at the latest. ``communicate`` itself is measured without computing.
    - ``interference``: the delay of the computation by a group's communication, which needs a core too. After the last
      group nothing is computed.

    ``per_layer``: selection works on each layer of a group (paper, Section 3.4, step 5), not on the merged group
    (eq. 6). ``requests``: the messages of a group's communication, one after the other. While a worker computes, it
    sends the next message of a group only when a layer is ready. Each message takes the same part of ``communicate``.
    """

    forward_s: float
    backward_s: Sequence[float]
    sparsify: Cost
    communicate: Cost
    latency: Cost = lambda entries: 0.0 * entries
    contention_s: float = 0.0
    interference: Cost = lambda entries: 0.0 * entries
    per_layer: bool = False
    requests: int = 1

    def sparsify_group(self, sizes: Sequence[int]) -> float:
        """t_s of a group of layers with these sizes."""
        return sum(self.sparsify(size) for size in sizes) if self.per_layer else self.sparsify(sum(sizes))

    def contended(self, entries: Number) -> Number:
        """t_c of a group that is sent while the workers compute."""
        return self.contention_s + self.communicate(entries)

    def core_free_at(self, began: Number, computed: Number) -> Number:
        """The time at which a communication that begins at ``began`` gets a core; computing ends at ``computed``."""
        return np.minimum(began + self.contention_s, np.maximum(began, computed))


@dataclass(frozen=True)
class Schedule:
    """(begin, end) of the parts of each group, in seconds from the start of forward, and the parts of the iteration."""

    backward: list[Interval]
    sparsify: list[Interval]
    communicate: list[Interval]
    forward_s: float
    backward_s: float
    sparsify_s: float
    communication_s: float  # non-overlapped: t_no of eq. 2
    iteration_s: float


def schedule(sizes: Sequence[int], costs: Costs, plan: Plan) -> Schedule:
    """Eqs 3-7 for merged groups.

    A group is sparsified when the backward of its last layer has ended. The backward of the next layer waits for that.
    One group communicates at a time, in order.
    """
    backward, sparsify, communicate, ready_at = [], [], [], []
    now, link_free, delay_s = costs.forward_s, 0.0, 0.0
    for start, stop in plan:
        began, now = now, now + delay_s + sum(costs.backward_s[start:stop])
        backward.append((began, now))  # (3), (6)
        if costs.requests > 1:
            ready_at += [began + delay_s + ends for ends in accumulate(costs.backward_s[start:stop])]
        began, now = now, now + costs.sparsify_group(sizes[start:stop])
        sparsify.append((began, now))  # (4)
        delay_s = costs.interference(sum(sizes[start:stop]))
    for (start, stop), (_, ready) in zip(plan, sparsify, strict=True):
        entries, began = sum(sizes[start:stop]), max(ready, link_free)  # (5)
        message_s = float(costs.communicate(entries)) / costs.requests
        link_free = float(costs.core_free_at(began, now)) + message_s
        for _ in range(costs.requests - 1):
            noticed = bisect_left(ready_at, link_free)
            link_free = (ready_at[noticed] if noticed < len(ready_at) else link_free) + message_s
        communicate.append((began, link_free))
    ended = link_free + costs.latency(entries)
    return Schedule(
        backward, sparsify, communicate,
        forward_s=costs.forward_s,
        backward_s=sum(end - begin for begin, end in backward),
        sparsify_s=sum(end - begin for begin, end in sparsify),
        communication_s=ended - now,  # (2)
        iteration_s=ended,  # (7)
    )  # fmt: skip
