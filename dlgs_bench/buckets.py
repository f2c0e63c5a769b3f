"""Bucketing: plans that depend on the sizes of layers only, and the plan of a method. No torch.

Layers are numbered in the order in which backward finishes them, from 0. A plan is a list of groups. A group is a
(start, stop) range of layers. The groups cover all layers, in order.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal

Plan = Sequence[tuple[int, int]]
Scope = Literal["model", "layer", "plan", "size"]


def num_entries(part: float, entries: int) -> int:
    """max(1, floor(part * entries)) without the rounding error of the product, such as 29 for 0.29 of 100."""
    return max(1, int(part * entries * (1 + 1e-12)))


def per_layer(sizes: Sequence[int]) -> Plan:
    """A plan with one group per layer."""
    return [(i, i + 1) for i in range(len(sizes))]


def merge_all(sizes: Sequence[int]) -> Plan:
    """A plan with one group of all layers, which is exchanged after backward."""
    return [(0, len(sizes))]


def merge_up_to(sizes: Sequence[int], *, most: int) -> Plan:
    """A plan that merges adjacent layers up to ``most`` entries; a larger layer is a group of its own."""
    plan, start, held = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and held + size > most:
            plan.append((start, i))
            start, held = i, 0
        held += size
    plan.append((start, len(sizes)))
    return plan


def fill(lengths: Sequence[int], first: int, most: int) -> Plan:
    """The buckets of DistributedDataParallel: a bucket ends with the layer that fills it, so it can be larger.

    ``lengths``: bytes of each layer. ``first``: the bytes that fill the first bucket; ``most``: any other bucket.
    """
    plan: list[tuple[int, int]] = []
    start, held = 0, 0
    for i, length in enumerate(lengths, start=1):
        held += length
        if held >= (most if plan else first) or i == len(lengths):
            plan.append((start, i))
            start, held = i, 0
    return plan


def filled_by(model: Any) -> tuple[int, int]:
    """The bytes that fill the first bucket of a DistributedDataParallel model, and any other bucket."""
    most = model.bucket_bytes_cap
    return 2**20 if model.bucket_bytes_cap_default else most, most


def split_evenly(sizes: Sequence[int], parts: int) -> Plan:
    """A plan with ``parts`` groups of about equal numbers of entries; ValueError if there are fewer layers."""
    if parts > len(sizes):
        raise ValueError(
            f"fragments: {parts} is more than the {len(sizes)} layers of the model; give at most {len(sizes)}"
        )
    ends, cuts = list(accumulate(sizes)), [0]
    for part in range(1, parts + 1):
        candidates = range(cuts[-1] + 1, len(sizes) - parts + part + 1)
        cuts.append(min(candidates, key=lambda cut: abs(ends[cut - 1] * parts - ends[-1] * part)))
    return list(pairwise(cuts))


FIXED = ("layer", "all", "size")  # planners that need no costs


def fixed(most: int) -> dict[str, Callable[[Sequence[int]], Plan]]:
    """The planners in ``FIXED`` by name; ``most``: the largest number of entries in a group of the planner "size"."""
    return dict(zip(FIXED, (per_layer, merge_all, partial(merge_up_to, most=most)), strict=True))


def planner_of(scope: Scope, planner: str) -> str:
    """The planner of a method's scope; ``planner``: the planner of scope "plan"."""
    return {"model": "all", "layer": "layer", "size": "size", "plan": planner}[scope]


def assign_buckets(sizes: Sequence[int], scope: Scope, planner: str, most: int, planned: Plan = ()) -> Plan:
    """The plan of a run whose method has this scope.

    ``planned``: a computed plan, which scopes "plan" and "size" use, or empty. ``planner``: a name in ``FIXED``, which
    makes the groups of scope "plan" if there is no computed plan. ValueError if the planner is not in ``FIXED`` and
    there is no computed plan, or if the plan is for another number of layers.
    """
    if scope not in ("plan", "size") or not planned:
        name = planner_of(scope, planner)
        if name not in FIXED:
            raise ValueError(f"planner: {name} needs a computed plan; pass one, or use one of: {', '.join(FIXED)}")
        return fixed(most)[name](sizes)
    if planned[-1][1] != len(sizes):
        raise ValueError(f"the plan covers {planned[-1][1]} layers, but the model has {len(sizes)}; compute a new plan")
    return list(planned)
