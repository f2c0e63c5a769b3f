"""The paper's time model (Section 3.1, eqs 2-7): when everything in one iteration begins and ends. No torch.

Layers are in the order in which backward finishes them, 0 first (the paper's layer L); groups of
merged layers are (start, stop) ranges in that order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dlgs_bench.buckets import Plan

Interval = tuple[float, float]


@dataclass(frozen=True)
class Costs:
    """What the model is made of, in seconds.

    ``forward_s``: t_f. ``backward_s``: t_b per layer. ``sparsify`` and ``communicate``: t_s and t_c of a
    group, from its number of entries before sparsification; both must also take numpy arrays.
    ``latency``: of a group, what its communication takes beyond its turn on the link. It overlaps the next one's
    turn, so that only the last one's is waited for (the paper has none: 0).
    ``contention_s``: what a communication that begins while the workers still compute waits for a core, at most until
    computing ends; ``communicate`` is measured while nobody computes. ``taken``: by how much a group's communication
    delays what is computed meanwhile, since sending and receiving need a core too; behind the last group nothing is
    computed. (The paper's nodes compute on GPUs: both are 0.)
    ``per_layer``: selection works layer by layer inside a group (paper, Section 3.4, step 5), not once
    on the merged whole (eq. 6).
    """

    forward_s: float
    backward_s: Sequence[float]
    sparsify: Callable[[float], float]
    communicate: Callable[[float], float]
    latency: Callable[[float], float] = lambda entries: 0.0 * entries
    contention_s: float = 0.0
    taken: Callable[[float], float] = lambda entries: 0.0 * entries
    per_layer: bool = False

    def sparsify_group(self, sizes: Sequence[int]) -> float:
        """t_s of a group of layers of these sizes."""
        return sum(map(self.sparsify, sizes)) if self.per_layer else self.sparsify(sum(sizes))

    def behind(self, entries):
        """t_c of a group that is sent while the workers compute."""
        return self.contention_s + self.communicate(entries)

    def has_core(self, begun, computed):
        """When a communication has a core that begins at ``begun``, where computing ends at ``computed``."""
        return np.minimum(begun + self.contention_s, np.maximum(begun, computed))


@dataclass(frozen=True)
class Schedule:
    """(begin, end) per group, in seconds from the start of forward; and the parts of the iteration."""

    backward: list[Interval]
    sparsify: list[Interval]
    communicate: list[Interval]
    forward_s: float
    backward_s: float
    sparsify_s: float
    communication_s: float  # non-overlapped: t_no of eq. 2
    iteration_s: float


def schedule(sizes: Sequence[int], costs: Costs, plan: Plan) -> Schedule:
    """Eqs 3-7 for merged groups: a group sparsifies when its last layer's backward has ended, the next
    layer's backward waits for that, and one group communicates at a time, in order."""
    backward, sparsify, communicate = [], [], []
    now, link_free, taken_s = costs.forward_s, 0.0, 0.0
    for start, stop in plan:
        begun, now = now, now + taken_s + sum(costs.backward_s[start:stop])
        backward.append((begun, now))  # (3), (6)
        begun, now = now, now + costs.sparsify_group(sizes[start:stop])
        sparsify.append((begun, now))  # (4)
        taken_s = costs.taken(sum(sizes[start:stop]))
    for (start, stop), (_, ready) in zip(plan, sparsify, strict=True):
        entries, begun = sum(sizes[start:stop]), max(ready, link_free)  # (5)
        link_free = float(costs.has_core(begun, now) + costs.communicate(entries))
        communicate.append((begun, link_free))
    ended = link_free + costs.latency(entries)
    return Schedule(
        backward, sparsify, communicate,
        forward_s=costs.forward_s,
        backward_s=sum(end - begin for begin, end in backward),
        sparsify_s=sum(end - begin for begin, end in sparsify),
        communication_s=ended - now,  # (2)
        iteration_s=ended,  # (7)
    )  # fmt: skip
