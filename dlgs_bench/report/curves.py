"""Curves of accuracy runs over the cost of training: steps, bytes, and time on the links of timing runs. No torch."""

import math

import numpy as np
import pandas as pd


def mean(points: pd.DataFrame) -> pd.DataFrame:
    """The mean curve of several seeds, at the steps that all seeds have."""
    by_step = points.groupby("step")
    in_all_seeds = by_step["seed"].transform("nunique") == points["seed"].nunique()
    return points[in_all_seeds].groupby("step")[["test_accuracy", "sent_bytes"]].mean().reset_index()


def at_bytes(run: pd.DataFrame, budget: float) -> pd.Series:
    """The first point of a run at which ``budget`` bytes were sent, or the last point if they never were."""
    reached = run[run["sent_bytes"] >= budget]
    return reached.iloc[0] if len(reached) else run.iloc[-1]


def steps_to(curve: pd.DataFrame, target: float) -> float:
    """The first step with a test accuracy of ``target``, interpolated linearly between points; infinity if never."""
    return _first_step(curve["step"].to_numpy(), curve["test_accuracy"].to_numpy(), target)


def _first_step(steps: np.ndarray, accuracy: np.ndarray, target: float) -> float:
    reached = int(np.argmax(accuracy >= target))
    if accuracy[reached] < target:
        return math.inf
    around = slice(max(0, reached - 1), reached + 1)
    return float(np.interp(target, accuracy[around], steps[around]))


def resampled_steps_to(
    points: pd.DataFrame, target: float, samples: tuple[int, int], draws: int, generator: np.random.Generator
) -> np.ndarray:
    """``steps_to`` of the mean curve of seeds, ``draws`` times, shape (draws,), with other noise.

    Noise of seeds: of n seeds, n - 1 are drawn with replacement, so the variance of the mean is not underestimated; a
    single seed stays. Noise of the test set: each accuracy is replaced by a binomial draw. ``samples``: the test
    samples of a point, and of the last point.
    """
    curve = points.pivot(index="step", columns="seed", values="test_accuracy").dropna()
    steps, seeds = curve.shape
    tested = np.full(steps, samples[0])
    tested[curve.index == points["step"].max()] = samples[1]
    chosen = generator.integers(seeds, size=(draws, max(1, seeds - 1)))
    accuracies = np.moveaxis(curve.to_numpy()[:, chosen], 0, -1)  # draws, seeds, steps
    drawn = (generator.binomial(tested, accuracies) / tested).mean(axis=1)
    return np.array([_first_step(curve.index.to_numpy(), accuracy, target) for accuracy in drawn])


def over_steps(iterations: pd.DataFrame, column: str, most: int = 80) -> pd.DataFrame:
    """The mean, the minimum (``_low``) and the maximum (``_high``) of ``column`` over ranges of steps.

    The ranges, at most ``most``, have equal lengths on a logarithmic axis. ``step``: the middle of a range.
    """
    steps = iterations["step"].to_numpy()
    edges = np.unique(np.geomspace(1, steps.max() + 1, most + 1).round().astype(int))
    ranges = np.searchsorted(edges, steps, side="right")
    grouped = iterations.groupby(ranges)
    values = grouped[column].agg(["mean", "min", "max"]).set_axis([column, f"{column}_low", f"{column}_high"], axis=1)
    middle = np.sqrt(grouped["step"].min() * grouped["step"].max())
    return values.assign(step=middle).reset_index(drop=True)
