"""From calibration samples to the costs that planners use: robust fits. No torch."""

import itertools
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from harness.timemodel.timeline import Costs
from harness.topology import Traffic

LEAST_R2 = 0.9  # below this a fit is called poor, in the plan and wherever it is shown


@dataclass(frozen=True)
class Fit:
    """seconds = alpha + beta * entries for each bucket, and ``once`` for all buckets that go together.

    ``r2``: of the logarithm of the seconds, since sizes span five decades.
    """

    alpha: float
    beta: float
    r2: float
    once: float = 0.0

    def __call__(self, entries):
        return self.alpha + self.beta * entries

    def warning(self) -> str:
        return _warning(self.r2)


@dataclass(frozen=True)
class Curve:
    """Seconds by entries, between measured sizes along straight lines on logarithmic axes.

    Selection is no straight line: beyond the caches an entry costs two to three times as much. Beyond the
    measured sizes the cost of an entry stays, below them that of a bucket.
    """

    entries: tuple[float, ...]
    seconds: tuple[float, ...]
    r2: float  # as in ``Fit``, of all samples' medians

    @cached_property
    def _logarithms(self) -> tuple[np.ndarray, np.ndarray]:
        return np.log(np.maximum(self.entries, 1e-12)), np.log(np.maximum(self.seconds, 1e-12))

    def __call__(self, entries):
        inside = np.exp(np.interp(np.log(np.maximum(entries, 1e-12)), *self._logarithms)) * (self.seconds[-1] > 0)
        return inside * np.maximum(1.0, np.asarray(entries) / self.entries[-1])

    def warning(self) -> str:
        return _warning(self.r2)


def _warning(r2: float) -> str:
    return "" if r2 >= LEAST_R2 else f"the fit is poor: R^2 = {r2:.2f}, below {LEAST_R2}"


def _r2(measured: np.ndarray, fitted: np.ndarray) -> float:
    """Of the logarithms; 1 where there is nothing to explain."""
    measured, fitted = (np.log(np.maximum(values, 1e-9)) for values in (measured, fitted))
    spread = ((measured - measured.mean()) ** 2).sum()
    return float(1 - ((measured - fitted) ** 2).sum() / spread) if spread > 0 else 1.0


def curve(entries, seconds) -> Curve:
    """Through the median of each size."""
    points = pd.DataFrame({"entries": entries, "seconds": seconds})
    medians = points.groupby("entries")["seconds"].median()
    found = Curve(tuple(medians.index), tuple(medians), 1.0)
    return replace(found, r2=_r2(points["seconds"].to_numpy(), found(points["entries"].to_numpy())))


def fit(entries, seconds, buckets=None) -> Fit:
    """Least absolute relative error, nothing negative, by reweighted least squares.

    ``buckets``: how many of these entries each took the seconds together; without, all were alone and
    nothing is spent ``once``. Relative, since sizes span five decades and every size counts the same;
    absolute, since single slow samples are noise of the machine, not of the method.
    """
    x, y = np.asarray(entries, float), np.asarray(seconds, float)
    n = np.ones_like(x) if buckets is None else np.asarray(buckets, float)
    scale = np.maximum(y, 1e-9)
    terms = np.stack([n, n * x] + ([np.ones_like(x)] if buckets is not None else []), axis=1)
    columns = terms / scale[:, None]
    target = y / scale
    weights = np.ones_like(x)
    for _ in range(50):
        solution = _not_negative(columns * weights[:, None], target * weights)
        residual = np.abs(columns @ solution - target)
        weights = 1 / np.sqrt(np.maximum(residual, 1e-6))
    r2 = _r2(y, terms @ solution)
    return Fit(float(solution[0]), float(solution[1]), r2, *map(float, solution[2:]))


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
    """``column`` by (entries, buckets): the median of each phase, weighted by its share of a cycle."""
    case = ["entries", "buckets"]
    medians = samples.groupby([*case, "phase"]).agg(median=(column, "median"), share=("share", "first"))
    weighted = medians.assign(median=medians["median"] * medians["share"]).groupby(case).sum()
    return (weighted["median"] / weighted["share"]).rename(column).reset_index()


def traffic_per_entry(samples: pd.DataFrame) -> Traffic:
    """Bytes that a worker hands over for each entry of a bucket, amortised over the phases.

    What a bucket carries whatever its size (headers, counts) is left out: it belongs to the latency.
    """

    def per_entry(column: str) -> float:
        if not samples[column].any():
            return 0.0
        known = amortised(samples, column)
        return fit(known["entries"], known[column] / known["buckets"]).beta

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
    alone, together = amortised(samples, "sparsify_s"), amortised(samples, "communication_s")
    sparsify = curve(alone["entries"], alone["sparsify_s"] / alone["buckets"])
    communicate = fit(together["entries"], together["communication_s"], together["buckets"])
    backward = layers.groupby("layer")["backward_s"].median().tolist()
    record = {"sparsify": asdict(sparsify), "communicate": asdict(communicate)}
    record["warnings"] = [f"{k}: {f.warning()}" for k, f in (("sparsify", sparsify), ("communicate", communicate))
                          if f.warning()]  # fmt: skip
    forward_s = float(iterations["forward_s"].median())
    measured = Costs(forward_s, backward, sparsify, communicate, communicate.once, within == "layer")
    sizes = layers.groupby("layer")["entries"].first().tolist()
    rest_s = float((iterations["optimizer_s"] + iterations["other_s"]).median() + iterations["skew_s"].mean())
    return Calibration(sizes, measured, rest_s, traffic, record)
