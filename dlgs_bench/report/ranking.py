"""Ranks methods by their time to a target accuracy at several link rates, as a performance profile does. No torch.

Source: Dolan and Moré, Benchmarking optimization software with performance profiles (2002), and the score of AlgoPerf
(Dahl et al., 2023).
"""

import numpy as np
import pandas as pd

TO_TARGET = "to_target_s_"  # begins the names of columns of times; the rate follows
SOONER = "sooner_"  # begins the names of columns of parts of draws; the rate follows
AT_MOST = 4.0  # a method that takes this many times as long as the fastest method has no score at a rate


def relative(table: pd.DataFrame) -> pd.DataFrame:
    """Each method's time to the target, divided by the shortest at the same rate; a column per rate.

    A method that does not reach the target has an infinite time, and so has every method if none reaches it.
    """
    columns = [column for column in table if column.startswith(TO_TARGET)]
    rates = [column.removeprefix(TO_TARGET) for column in columns]
    return pd.DataFrame(_relative(table[columns].to_numpy(float)), table.index, rates)


def scores(table: pd.DataFrame) -> pd.Series:
    """The area under each method's performance profile from 1 to ``AT_MOST``, divided by the whole area.

    The profile of a method is the part of the rates at which it takes at most x times as long as the fastest method. A
    method that is the fastest at every rate has 1. A method that never takes less than ``AT_MOST`` times as long has 0.
    """
    return pd.Series(_areas(relative(table).to_numpy()), table.index)


def _relative(times: np.ndarray) -> np.ndarray:
    """The times divided by the shortest, shape (..., methods, rates); infinite where no method reaches the target."""
    times = np.where(np.isnan(times), np.inf, times)
    with np.errstate(invalid="ignore"):  # infinite by infinite
        relative = times / times.min(axis=-2, keepdims=True)
    return np.where(np.isnan(relative), np.inf, relative)


def _areas(relative: np.ndarray) -> np.ndarray:
    """The scores, shape (..., methods), from relative times, shape (..., methods, rates)."""
    return ((AT_MOST - relative) / (AT_MOST - 1)).clip(min=0).mean(axis=-1)


def resampled(per_step: pd.DataFrame, steps: np.ndarray, dense: pd.Series) -> pd.DataFrame:
    """How far scores move if ``steps`` to the target are other draws: a row per method.

    ``per_step``: seconds per step, a column per rate. ``steps``: shape (draws, methods). ``dense``: True for the
    uncompressed method. Columns: ``score_sd``; ``score_low`` and ``score_high``, between which 95 % of the scores lie;
    ``sooner_<rate>``, the part of the draws in which the method reaches the target sooner than uncompressed.
    """
    times = steps[:, :, None] * per_step.to_numpy(float)
    drawn = _areas(_relative(times))
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    table = pd.DataFrame({"score_sd": drawn.std(axis=0), "score_low": low, "score_high": high}, per_step.index)
    sooner = (times < times[:, np.flatnonzero(dense)[:1]]).mean(axis=0)
    return table.join(pd.DataFrame(sooner, per_step.index, per_step.columns.str.replace(TO_TARGET, SOONER)))


def unbeaten(table: pd.DataFrame) -> pd.Series:
    """Whether no other method sends fewer bits and is more accurate, or better in one and equal in the other."""
    bits, accuracy = (table[key].to_numpy() for key in ("bits_per_entry", "accuracy"))
    no_worse = (bits[None] <= bits[:, None]) & (accuracy[None] >= accuracy[:, None])
    better = (bits[None] < bits[:, None]) | (accuracy[None] > accuracy[:, None])
    return pd.Series(~(no_worse & better).any(axis=1), table.index)
