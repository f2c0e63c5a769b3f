"""From calibration samples to the costs that planners use: curves through medians. No torch."""

import itertools
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from dlgs_bench import stats
from dlgs_bench.timemodel.curves import Curve
from dlgs_bench.timemodel.timeline import Costs
from dlgs_bench.topology import Traffic


def curve(entries, seconds) -> Curve:
    """Through the median of each size."""
    points = pd.DataFrame({"entries": entries, "seconds": seconds})
    medians = points.groupby("entries")["seconds"].median()
    return Curve(tuple(medians.index), tuple(medians))


def turns(samples: pd.DataFrame) -> tuple[Curve, Curve]:
    """t_c, by entries of the bucket: the turn that a communication has on the link, and how much longer it lasts.

    Of n buckets sent together the first takes T(1), and each of the others waits for its turn of
    (T(n) - T(1)) / (n - 1). Where a size was too large to be sent n times, its turn is the same part of T(1) as that of
    the largest that was not. A larger message never costs less: what contradicts that is noise, and evened out.
    """
    samples = samples[~samples["overlapped"]]
    times = amortised(samples, "communication_s").pivot(index="entries", columns="buckets", values="communication_s")
    alone, n = times[1], times.columns.max()
    if n == 1:
        turn = alone
    else:
        turn = ((times[n] - alone) / (n - 1)).clip(lower=0.0)
        part = (turn / alone).dropna().clip(upper=1.0)
        turn = turn.fillna(alone * (part.iloc[-1] if len(part) else 1.0))
    turn = pd.Series(_rising(turn.to_numpy()), turn.index)
    longer = (alone - turn).clip(lower=0.0)
    sizes = tuple(map(float, turn.index))
    return Curve(sizes, tuple(turn)), Curve(sizes, tuple(longer))


def contention(samples: pd.DataFrame) -> float:
    """How much longer each of the buckets sent together takes while the workers compute, in the median of sizes.

    A thread that sends waits for a core then, as long for a small message as for a large one.
    """
    together = samples[samples["buckets"] == samples["buckets"].max()]
    overlapped, alone = (
        amortised(together[together["overlapped"] == overlapped], "communication_s").set_index("entries")[
            "communication_s"
        ]
        for overlapped in (True, False)
    )
    longer = ((overlapped - alone) / together["buckets"].max()).dropna()
    return max(0.0, float(longer.median())) if len(longer) else 0.0


def taken(samples: pd.DataFrame) -> Curve:
    """What one communication takes from what a worker computes beside it, by entries of the bucket; never less of a
    larger one. 0 where nothing was computed beside any."""
    overlapped = samples[samples["overlapped"]]
    if overlapped.empty:
        return Curve((1.0,), (0.0,))
    times = amortised(overlapped, "taken_s").sort_values("entries")
    each = (times["taken_s"] / times["buckets"]).clip(lower=0.0).to_numpy()
    return Curve(tuple(map(float, times["entries"])), tuple(_rising(each)))


def _rising(values: np.ndarray) -> list[float]:
    """The nearest sequence that never falls (isotonic regression)."""
    sums, ends = [0.0, *np.cumsum(values)], range(1, len(values) + 1)

    def mean(start: int, stop: int) -> float:
        return float(sums[stop] - sums[start]) / (stop - start)

    return [max(min(mean(i, j) for j in ends[k:]) for i in range(k + 1)) for k in range(len(values))]


def slope(entries, values) -> float:
    """The least absolute relative error of a line through positive values, its slope; neither part negative."""
    x, y = np.asarray(entries, float), np.asarray(values, float)
    columns = np.stack([np.ones_like(x), x], axis=1) / np.maximum(y, 1e-9)[:, None]
    weights = np.ones_like(x)
    for _ in range(50):  # reweighted least squares
        solution = _not_negative(columns * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(columns @ solution - 1), 1e-6))
    return float(solution[1])


def _not_negative(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares in few unknowns, none negative: the best of all choices of which are 0."""
    unknowns = columns.shape[1]
    best, least = np.zeros(unknowns), (target**2).sum()
    for used in itertools.product([False, True], repeat=unknowns):
        solution = np.zeros(unknowns)
        solution[list(used)] = np.linalg.lstsq(columns[:, used], target, rcond=None)[0]
        error = ((columns @ solution - target) ** 2).sum()
        if (solution >= 0).all() and error < least:
            best, least = solution, error
    return best


def amortised(samples: pd.DataFrame, column: str) -> pd.DataFrame:
    """``column`` by (entries, buckets), over the phases of a cycle."""
    case = ["entries", "buckets"]
    rows = [
        (*of, stats.amortised(zip(own[column], own["phase"], own["share"], strict=True)))
        for of, own in samples.groupby(case)
    ]
    return pd.DataFrame(rows, columns=[*case, column])


def traffic_per_entry(samples: pd.DataFrame) -> Traffic:
    """Bytes that a worker hands over for each entry of a bucket, amortised over the phases.

    What a bucket carries whatever its size (headers, counts) is left out: it belongs to the latency.
    """

    def per_entry(column: str) -> float:
        if not samples[column].any():
            return 0.0
        known = amortised(samples, column)
        return slope(known["entries"], known[column] / known["buckets"])

    return Traffic(*(per_entry(column) for column in ("summed_bytes", "gathered_bytes", "message_bytes")))


@dataclass(frozen=True)
class Calibration:
    """What the calibration runs of one model and one method say.

    ``sizes``: of the layers. ``rest_s``: optimizer, other, and waiting for slower workers. ``traffic``: what one
    worker hands over for each entry. ``fits``: a record of them, for people.
    """

    sizes: list[int]
    costs: Costs
    rest_s: float
    traffic: Traffic
    fits: dict


def calibration(
    layers: pd.DataFrame,
    iterations: pd.DataFrame,
    samples: pd.DataFrame,
    within: str = "group",
    cost: str = "amortised",
) -> Calibration:
    """From the tables ``layers.csv``, ``iterations.csv`` and ``samples.csv`` of the calibration runs.

    ``within``: "layer" if the method selects in each layer of a merged group by itself. ``cost``: "amortised"
    over the phases of a cycle, or "dearest": as if every step were of the phase that selects longest, which
    is what the paper's TopKTime says of DLGS.
    """
    traffic = traffic_per_entry(samples)
    if cost == "dearest":
        dearest = samples.groupby("phase")["sparsify_s"].sum().idxmax()
        samples = samples[samples["phase"] == dearest]
    selected = amortised(samples, "sparsify_s")
    sparsify = curve(selected["entries"], selected["sparsify_s"] / selected["buckets"])
    communicate, latency = turns(samples)
    contention_s, lost = contention(samples), taken(samples)
    backward = layers.groupby("layer")["backward_s"].median().tolist()
    record = {"sparsify": asdict(sparsify), "communicate": asdict(communicate), "latency": asdict(latency),
              "contention_s": contention_s, "taken": asdict(lost)}  # fmt: skip
    forward_s = float(iterations["forward_s"].median())
    measured = Costs(forward_s, backward, sparsify, communicate, latency, contention_s, lost, within == "layer")
    sizes = layers.groupby("layer")["entries"].first().tolist()
    rest_s = float((iterations["optimizer_s"] + iterations["other_s"]).median() + iterations["skew_s"].mean())
    return Calibration(sizes, measured, rest_s, traffic, record)
