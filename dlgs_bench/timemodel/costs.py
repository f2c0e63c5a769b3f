"""Fits the costs of the time model to calibration samples: curves through medians and means. No torch."""

import itertools
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dlgs_bench import stats
from dlgs_bench.timemodel.cost_curve import Curve
from dlgs_bench.timemodel.timeline import Costs
from dlgs_bench.topology import Traffic

# These times contain waits for a core. Most waits are short and few are long. An iteration has many messages, so it
# adds up many waits, and their mean counts.
WAITS = ("communication_s", "taken_s")


def curve(entries: ArrayLike, seconds: ArrayLike) -> Curve:
    """The curve through the median seconds of each number of entries."""
    points = pd.DataFrame({"entries": entries, "seconds": seconds})
    medians = points.groupby("entries")["seconds"].median()
    return Curve(tuple(medians.index), tuple(medians))


def link_occupancy(samples: pd.DataFrame) -> tuple[Curve, Curve]:
    """t_c by entries of the bucket: how long a communication occupies the link, and how much longer it lasts.

    Let T(n) be the time of n buckets in flight. The first bucket takes T(1). Each further bucket occupies the link for
    (T(n) - T(1)) / (n - 1). A size that was too large for n buckets has the same share of T(1) as the largest size that
    was not too large. A larger message never costs less: samples that contradict this are noise, and are smoothed.
    """
    samples = samples[~samples["overlapped"]]
    times = amortised(samples, "communication_s").pivot(index="entries", columns="buckets", values="communication_s")
    single, n = times[1], times.columns.max()
    if n == 1:
        occupied = single
    else:
        occupied = ((times[n] - single) / (n - 1)).clip(lower=0.0)
        occupied_part = (occupied / single).dropna().clip(upper=1.0)
        occupied = occupied.fillna(single * (occupied_part.iloc[-1] if len(occupied_part) else 1.0))
    occupied = pd.Series(_isotonic(occupied.to_numpy()), occupied.index)
    longer = (single - occupied).clip(lower=0.0)
    sizes = tuple(map(float, occupied.index))
    return Curve(sizes, tuple(occupied)), Curve(sizes, tuple(longer))


def contention(samples: pd.DataFrame) -> float:
    """How much longer each bucket in flight takes while the workers compute: the mean over sizes, in seconds.

    The communication thread then waits for a core. This wait does not depend on the size of the message.
    """
    in_flight = samples[samples["buckets"] == samples["buckets"].max()]
    overlapped, sequential = (
        amortised(in_flight[in_flight["overlapped"] == overlapped], "communication_s").set_index("entries")[
            "communication_s"
        ]
        for overlapped in (True, False)
    )
    longer = ((overlapped - sequential) / in_flight["buckets"].max()).dropna()
    return max(0.0, float(longer.mean())) if len(longer) else 0.0


def interference(samples: pd.DataFrame) -> Curve:
    """Seconds by which one communication slows a worker's computation, by entries of the bucket.

    It never falls with the size. It is 0 if no sample overlapped communication with computation.
    """
    overlapped = samples[samples["overlapped"]]
    if overlapped.empty:
        return Curve((1.0,), (0.0,))
    times = amortised(overlapped, "taken_s").sort_values("entries")
    each = (times["taken_s"] / times["buckets"]).clip(lower=0.0).to_numpy()
    return Curve(tuple(map(float, times["entries"])), tuple(_isotonic(each)))


def _isotonic(values: np.ndarray) -> list[float]:
    """The nearest sequence that never falls: isotonic regression by the min-max formula."""
    sums, ends = [0.0, *np.cumsum(values)], range(1, len(values) + 1)

    def mean(start: int, stop: int) -> float:
        return float(sums[stop] - sums[start]) / (stop - start)

    return [max(min(mean(i, j) for j in ends[k:]) for i in range(k + 1)) for k in range(len(values))]


def slope(entries: ArrayLike, values: ArrayLike) -> float:
    """The slope of the line with the least absolute relative error through positive values.

    Slope and intercept are not negative.
    """
    x, y = np.asarray(entries, float), np.asarray(values, float)
    columns = np.stack([np.ones_like(x), x], axis=1) / np.maximum(y, 1e-9)[:, None]
    weights = np.ones_like(x)
    for _ in range(50):  # reweighted least squares
        solution = _not_negative(columns * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(columns @ solution - 1), 1e-6))
    return float(solution[1])


def _not_negative(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The solution of a least-squares problem without negative unknowns, by trying all sets of unknowns that are 0."""
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
    """``column`` by (entries, buckets), amortised over the phases of a cycle: medians, or means of ``WAITS``."""
    entries, buckets = samples["entries"].to_numpy(), samples["buckets"].to_numpy()
    phases = pd.factorize(samples["phase"])[0]
    firsts, values = stats.amortised_by([entries, buckets], samples[column], phases, samples["share"], column in WAITS)
    return pd.DataFrame({"entries": entries[firsts], "buckets": buckets[firsts], column: values})


def traffic_per_entry(samples: pd.DataFrame) -> Traffic:
    """The bytes that a worker sends for each entry of a bucket, and its dense sums, amortised over the phases.

    Bytes that do not depend on the size of the bucket (headers, counts) are left out. They are part of the latency.
    """

    def per_entry(column: str) -> float:
        if not samples[column].any():
            return 0.0
        means = amortised(samples, column)
        return slope(means["entries"], means[column] / means["buckets"])

    sums = amortised(samples, "sums")
    summed, gathered, messages = map(per_entry, ("summed_bytes", "gathered_bytes", "message_bytes"))
    return Traffic(summed, gathered, messages, sums=float((sums["sums"] / sums["buckets"]).mean()))


@dataclass(frozen=True)
class Calibration:
    """The costs of one model and one method, from their calibration runs.

    ``sizes``: entries of the layers. ``costs``: of the slowest worker, for which the others wait. ``rest_s``: optimizer
    and other. ``traffic``: the bytes that one worker sends for each entry. ``fits``: the curves as a record for people.
    ``skew_s``: the mean wait for the slowest worker, which its backward contains.
    """

    sizes: list[int]
    costs: Costs
    rest_s: float
    traffic: Traffic
    fits: dict
    skew_s: float


def calibration(
    layers: pd.DataFrame,
    iterations: pd.DataFrame,
    samples: pd.DataFrame,
    within: str = "group",
    cost: str = "amortised",
) -> Calibration:
    """The costs from the tables ``layers.csv``, ``iterations.csv`` and ``samples.csv`` of the calibration runs.

    ``within``: "layer" if the method selects in each layer of a merged group separately. ``cost``: "amortised" over the
    phases of a cycle, or "worst", the worst case: all steps have the phase with the longest selection. The paper's
    TopKTime assumes this worst case for DLGS.
    """
    traffic = traffic_per_entry(samples)
    if cost == "worst":
        longest = samples.groupby("phase")["sparsify_s"].sum().idxmax()
        samples = samples[samples["phase"] == longest]
    selected = amortised(samples, "sparsify_s")
    sparsify = curve(selected["entries"], selected["sparsify_s"] / selected["buckets"])
    communicate, latency = link_occupancy(samples)
    contention_s, slows = contention(samples), interference(samples)
    record = {"sparsify": asdict(sparsify), "communicate": asdict(communicate), "latency": asdict(latency),
              "contention_s": contention_s, "interference": asdict(slows)}  # fmt: skip
    forward_s, skew_s = float(iterations["forward_s"].median()), float(iterations["skew_s"].mean())
    measured = Costs(
        forward_s,
        backward_of_slowest(layers, skew_s),
        sparsify,
        communicate,
        latency,
        contention_s,
        slows,
        within == "layer",
        requests=max(1, round(traffic.sums)),
    )
    sizes = layers.groupby("layer")["entries"].first().tolist()
    rest_s = float((iterations["optimizer_s"] + iterations["other_s"]).median())
    return Calibration(sizes, measured, rest_s, traffic, record, skew_s)


def backward_of_slowest(layers: pd.DataFrame, skew_s: float) -> list[float]:
    """Seconds of backward of each layer on the slowest worker, for which the others wait.

    They are in proportion to the medians of each layer. Their sum is the median of whole backward passes and
    ``skew_s``, the mean wait for the slowest worker. The sum of the medians is less than the median of the sums if
    workers share cores: each layer of a pass seldom loses its core, but some layer does in every pass.
    """
    medians = layers.groupby("layer")["backward_s"].median()
    passes = layers["backward_s"].groupby(layers.groupby("layer").cumcount()).sum()
    whole_s = passes.median() + skew_s
    return (medians * whole_s / medians.sum()).tolist()
