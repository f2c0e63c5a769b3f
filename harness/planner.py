"""Which layers are exchanged together: pure functions from layer sizes to groups. No torch.

Layers are numbered in the order in which backward finishes them, 0 first. A plan is a list of
groups, each a (start, stop) range of layers; together they cover all layers, in order.
"""

Plan = list[tuple[int, int]]


def per_layer(sizes: list[int]) -> Plan:
    """Every layer by itself: no merging."""
    return [(i, i + 1) for i in range(len(sizes))]


def merge_all(sizes: list[int]) -> Plan:
    """One group: exchanged when backward has ended."""
    return [(0, len(sizes))]


def merge_up_to(sizes: list[int], most: int) -> Plan:
    """Merge neighbours while a group holds at most ``most`` entries; a larger layer stands alone."""
    plan, start, held = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and held + size > most:
            plan.append((start, i))
            start, held = i, 0
        held += size
    plan.append((start, len(sizes)))
    return plan
