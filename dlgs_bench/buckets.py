"""Groups of layers that need no costs, and who makes which: no torch, and no planner.

Layers are numbered in the order in which backward finishes them, 0 first. A plan is a list of groups, each a
(start, stop) range of layers; together they cover all layers, in order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

Plan = list[tuple[int, int]]
Scope = Literal["model", "layer", "size", "plan"]


def per_layer(sizes: Sequence[int]) -> Plan:
    """Every layer by itself: no merging."""
    return [(i, i + 1) for i in range(len(sizes))]


def merge_all(sizes: Sequence[int]) -> Plan:
    """One group: exchanged when backward has ended."""
    return [(0, len(sizes))]


def merge_up_to(sizes: Sequence[int], *, most: int) -> Plan:
    """Merge neighbours while a group holds at most ``most`` entries; a larger layer stands alone."""
    plan, start, held = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and held + size > most:
            plan.append((start, i))
            start, held = i, 0
        held += size
    plan.append((start, len(sizes)))
    return plan


FIXED = ("layer", "all", "size")  # planners that need no costs


def fixed(most: int) -> dict[str, Callable[[Sequence[int]], Plan]]:
    """The planners that look at sizes alone, by name; ``most``: entries of a group of the planner "size"."""
    return dict(zip(FIXED, (per_layer, merge_all, partial(merge_up_to, most=most)), strict=True))


def planner_of(scope: Scope, planner: str) -> str:
    """The planner that cuts the gradient for a method's scope, where ``planner`` makes the plans."""
    return {"model": "all", "layer": "layer", "size": "size", "plan": planner}[scope]


def assign_buckets(
    sizes: Sequence[int], scope: Scope, planner: str, most: int, planned: Sequence[tuple[int, int]] = ()
) -> Plan:
    """The groups of a run for its method's scope.

    ``planned``: the groups of a plan; scopes "plan" and "size" use them. ``planner``: makes the groups of scope "plan"
    where no plan is given; one of ``FIXED``. ValueError if there is no plan and the planner needs one, or if the plan
    is for another number of layers.
    """
    if scope not in ("plan", "size") or not planned:
        name = planner_of(scope, planner)
        if name not in FIXED:
            raise ValueError(f"planner {name} needs a plan, and the run was given none")
        return fixed(most)[name](sizes)
    if planned[-1][1] != len(sizes):
        raise ValueError(f"the plan covers {planned[-1][1]} layers, the model has {len(sizes)}")
    return list(planned)
