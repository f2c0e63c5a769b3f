"""Whether compressing gradients pays on a given network: ranked predictions with their error. No torch.

The error is known from predictions that were compared with measurements.
"""

import math

import numpy as np
import pandas as pd

from dlgs_bench.timemodel.checked_range import SPEEDUP_FACTOR

COVERED = 0.9  # share of the predictions that lie within the stated error


def errors(checked: pd.DataFrame) -> pd.Series:
    """The factor, at least 1, between each predicted speed-up and the measured speed-up."""
    return np.exp(np.abs(np.log(checked["predicted_speedup"] / checked["speedup"])))


def margin(checked: pd.DataFrame) -> float:
    """The factor within which 9 of 10 further predictions of the same kind lie; infinity after too few checks.

    Split conformal prediction (Lei et al., Distribution-Free Predictive Inference, 2018).
    """
    off = np.sort(errors(checked))
    rank = math.ceil(COVERED * (len(off) + 1))
    return float(off[rank - 1]) if rank <= len(off) else math.inf


def interval(checked: pd.DataFrame) -> float:
    """The factor of the intervals of predicted speed-ups: ``margin``, but at least ``SPEEDUP_FACTOR``."""
    return max(margin(checked), SPEEDUP_FACTOR)


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The predictions with ``dense_s``, the fastest uncompressed of the same model and topology, and ``speedup``.

    ValueError if uncompressed is missing.
    """
    dense = table[table["variant"] == "none"].groupby(["model", "topology"])["iteration_s"].min()
    settings = pd.MultiIndex.from_frame(table[["model", "topology"]])
    if missing := sorted(set(settings) - set(dense.index)):
        raise ValueError(f"methods: uncompressed is missing for {missing[0][0]}, but advice needs it; add none")
    dense_s = dense.loc[settings].to_numpy()
    return table.assign(dense_s=dense_s, speedup=dense_s / table["iteration_s"])


def ranked(predictions: pd.DataFrame, factor: float | np.ndarray) -> pd.DataFrame:
    """The predictions as ``compared`` returns them, the fastest first, with intervals.

    The interval of ``speedup`` extends by a factor ``factor`` to both sides; it is one number, or one number per row.
    """
    off = np.where(predictions["variant"] == "none", 1.0, factor)
    ends = {"speedup_low": predictions["speedup"] / off, "speedup_high": predictions["speedup"] * off}
    return predictions.assign(**ends).sort_values("iteration_s", kind="stable")
