"""From calibration samples to the costs that planners use: robust fits. No torch."""

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from harness.timeline import Costs

LEAST_R2 = 0.9  # below this a fit is called poor, in the plan and wherever it is shown


@dataclass(frozen=True)
class Fit:
    """seconds = alpha + beta * entries. ``r2``: of the fit weighted by 1 / seconds^2."""

    alpha: float
    beta: float
    r2: float

    def __call__(self, entries):
        return self.alpha + self.beta * entries

    def warning(self) -> str:
        return "" if self.r2 >= LEAST_R2 else f"the fit is poor: R^2 = {self.r2:.2f}, below {LEAST_R2}"


def fit(entries, seconds) -> Fit:
    """Least absolute relative error, alpha and beta not negative, by reweighted least squares.

    Relative, since sizes span five decades and every size counts the same; absolute, since single
    slow samples are noise of the machine, not of the method.
    """
    x, y = np.asarray(entries, float), np.asarray(seconds, float)
    scale = np.maximum(y, 1e-9)
    columns = np.stack([np.ones_like(x), x], axis=1) / scale[:, None]
    target = y / scale
    weights = np.ones_like(x)
    for _ in range(50):
        solution = _not_negative(columns * weights[:, None], target * weights)
        residual = np.abs(columns @ solution - target)
        weights = 1 / np.sqrt(np.maximum(residual, 1e-6))
    w = 1 / scale**2
    predicted = solution[0] + solution[1] * x
    spread = (w * (y - np.average(y, weights=w)) ** 2).sum()
    r2 = 1 - (w * (y - predicted) ** 2).sum() / spread if spread > 0 else 1.0
    return Fit(float(solution[0]), float(solution[1]), float(r2))


def _not_negative(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares in two unknowns, neither negative: where one would be, it is 0."""
    solution = np.linalg.lstsq(columns, target, rcond=None)[0]
    if (solution >= 0).all():
        return solution
    candidates = []
    for i in (0, 1):
        one = np.zeros(2)
        one[i] = max(0.0, (columns[:, i] @ target) / (columns[:, i] @ columns[:, i]))
        candidates.append(one)
    return min(candidates, key=lambda s: ((columns @ s - target) ** 2).sum())


def amortised(samples: pd.DataFrame, column: str) -> pd.DataFrame:
    """(entries, seconds): the median of each phase, weighted by its share of a cycle."""
    medians = samples.groupby(["entries", "phase"]).agg(seconds=(column, "median"), share=("share", "first"))
    weighted = medians.assign(seconds=medians["seconds"] * medians["share"]).groupby("entries").sum()
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
    sparsify, communicate = (
        fit(table["entries"], table["seconds"])
        for table in (amortised(samples, "sparsify_s"), amortised(samples, "communication_s"))
    )
    backward = layers.groupby("layer")["backward_s"].median().tolist()
    record = {"sparsify": asdict(sparsify), "communicate": asdict(communicate)}
    record["warnings"] = [f"{k}: {f.warning()}" for k, f in (("sparsify", sparsify), ("communicate", communicate))
                          if f.warning()]  # fmt: skip
    forward_s = float(iterations["forward_s"].median())
    measured = Costs(forward_s, backward, sparsify, communicate, per_layer=within == "layer")
    sizes = layers.groupby("layer")["entries"].first().tolist()
    rest_s = float((iterations["optimizer_s"] + iterations["other_s"]).median())
    return Calibration(sizes, measured, rest_s, record)
