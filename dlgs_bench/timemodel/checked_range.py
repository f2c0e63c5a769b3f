"""The range in which predictions were compared with measurements, and their errors in it. No torch, no pandas.

The cases are in ``workflow/studies/advise/checked.csv``; the cases of ``TIED`` are in
``profiles.csv`` of ``results/reference-profiles`` and ``results/reference-profiles-avx2``.
"""

from dlgs_bench.timemodel.links import Network

# The factor of intervals. Within it, 9 of 10 speed-ups that an earlier time model predicted were right (2026-11-23, n =
# 50). Newer checks need 1.12 to 1.20, on two machines without a GPU. The wider one is kept, for other hardware.
SPEEDUP_FACTOR = 1.34
# Factor within which 9 of 10 predicted ratios of two methods of one job were right, on the worse of two machines: 1.17
# with AVX2, 1.12 with AVX-512, n = 120 each.
TIED = 1.17
CHECKED = {
    "workers": (2, 4),
    "Mb/s": (100, 1000),
    "ms of latency": (0, 5),
    "s per iteration of uncompressed": (0.071, 5.1),
}


def outside_checked(there: Network, dense_s: float, node_speed: float = 1.0) -> list[str]:
    """Why a prediction lies outside the checked range: one text per quantity; an empty list if it lies inside.

    ``dense_s``: the iteration of uncompressed there. ``node_speed``: the speed of a node divided by the speed of the
    machine that was calibrated.
    """
    reasons = []
    values = (there.workers, there.rate_mbit, there.latency_ms, dense_s)
    for (unit, (low, high)), value in zip(CHECKED.items(), values, strict=True):
        if not low <= value <= high:
            shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            reasons.append(f"{shown} {unit}, where {low:g} to {high:g} were checked")
    if node_speed != 1:
        reasons.append(f"nodes {node_speed:.3g} times as fast as this machine, where equally fast nodes were checked")
    return reasons
