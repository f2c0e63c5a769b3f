"""From calibration samples to the costs that planners use: robust fits. No torch."""

import itertools
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from harness.timeline import Costs

LEAST_R2 = 0.9  # below this a fit is called poor, in the plan and wherever it is shown


@dataclass(frozen=True)
class Fit:
    """seconds = alpha + beta * entries for each bucket, and ``once`` for buckets that go together.

    ``r2``: of the fit weighted by 1 / seconds^2.
    """

    alpha: float
    beta: float
    r2: float
    once: float = 0.0

    def __call__(self, entries):
        return self.alpha + self.beta * entries

    def warning(self) -> str:
        return "" if self.r2 >= LEAST_R2 else f"the fit is poor: R^2 = {self.r2:.2f}, below {LEAST_R2}"


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
    w = 1 / scale**2
    predicted = terms @ solution
    spread = (w * (y - np.average(y, weights=w)) ** 2).sum()
    r2 = 1 - (w * (y - predicted) ** 2).sum() / spread if spread > 0 else 1.0
    return Fit(float(solution[0]), float(solution[1]), float(r2), *map(float, solution[2:]))


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
    """(entries, buckets, seconds): the median of each phase, weighted by its share of a cycle."""
    case = ["entries", "buckets"]
    medians = samples.groupby([*case, "phase"]).agg(seconds=(column, "median"), share=("share", "first"))
    weighted = medians.assign(seconds=medians["seconds"] * medians["share"]).groupby(case).sum()
    return (weighted["seconds"] / weighted["share"]).rename("seconds").reset_index()


@dataclass(frozen=True)
class Calibration:
    """What the calibration runs of one model and one method say: ``sizes`` of the layers, the ``costs`` of
    the time model, optimizer and other (``rest_s``), and a record of the ``fits``."""

    sizes: list[int]
    costs: Costs
    rest_s: float
    fits: dict


def calibration(
    layers: pd.DataFrame, iterations: pd.DataFrame, samples: pd.DataFrame, within: str = "group"
) -> Calibration:
    """From the tables ``layers.csv``, ``iterations.csv`` and ``samples.csv`` of the calibration runs.

    ``within``: "layer" if the method selects in each layer of a merged group by itself.
    """
    alone, together = amortised(samples, "sparsify_s"), amortised(samples, "communication_s")
    sparsify = fit(alone["entries"], alone["seconds"] / alone["buckets"])
    communicate = fit(together["entries"], together["seconds"], together["buckets"])
    backward = layers.groupby("layer")["backward_s"].median().tolist()
    record = {"sparsify": asdict(sparsify), "communicate": asdict(communicate)}
    record["warnings"] = [f"{k}: {f.warning()}" for k, f in (("sparsify", sparsify), ("communicate", communicate))
                          if f.warning()]  # fmt: skip
    forward_s = float(iterations["forward_s"].median())
    measured = Costs(forward_s, backward, sparsify, communicate, communicate.once, within == "layer")
    sizes = layers.groupby("layer")["entries"].first().tolist()
    rest_s = float((iterations["optimizer_s"] + iterations["other_s"]).median())
    return Calibration(sizes, measured, rest_s, record)
