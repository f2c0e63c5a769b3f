"""Whether compressing gradients pays on a network that is described: predictions, ranked, with the error that they had
where they were held against measurements. No torch."""

import math

import numpy as np
import pandas as pd

from dlgs_bench.timemodel.iterations import COMPUTING, break_even_mbit, fastest_s, iteration_s, predicted

__all__ = [
    "COMPUTING",
    "break_even_mbit",
    "errors",
    "fastest_s",
    "iteration_s",
    "margin",
    "predicted",
    "ranked",
    "verdict",
]
COVERED = 0.9  # of the predictions lie within the error that is stated


def errors(checked: pd.DataFrame) -> pd.Series:
    """The factor, at least 1, by which each predicted speed-up was off."""
    return np.exp(np.abs(np.log(checked["predicted_speedup"] / checked["speedup"])))


def margin(checked: pd.DataFrame) -> float:
    """The factor within which the next speed-up of the kind that was checked lies in 9 of 10 cases, infinite where too
    few were checked to know (split conformal prediction; Lei et al., Distribution-Free Predictive Inference, 2018)."""
    off = np.sort(errors(checked))
    place = math.ceil(COVERED * (len(off) + 1))
    return float(off[place - 1]) if place <= len(off) else math.inf


def ranked(table: pd.DataFrame, factor: float | np.ndarray) -> pd.DataFrame:
    """Predictions of every model over each topology, the fastest first, each against the fastest uncompressed of the
    same model and topology: ``dense_s`` and ``speedup``, with an interval of ``factor`` (one, or one for each row) to
    either side.

    ValueError if uncompressed is missing somewhere.
    """
    dense = table[table["variant"] == "none"].groupby(["model", "topology"])["iteration_s"].min()
    places = pd.MultiIndex.from_frame(table[["model", "topology"]])
    if missing := sorted(set(places) - set(dense.index)):
        raise ValueError(f"advice is against uncompressed, which is missing for {missing[0][0]}: add none to methods")
    found = table.assign(dense_s=dense.loc[places].to_numpy())
    found["speedup"] = found["dense_s"] / found["iteration_s"]
    off = np.where(found["variant"] == "none", 1.0, factor)
    found["speedup_low"], found["speedup_high"] = found["speedup"] / off, found["speedup"] * off
    return found.sort_values("iteration_s", kind="stable")


def verdict(row: pd.Series) -> str:
    """Of the fastest prediction that compresses: "pays", "does not pay" or "cannot be told"."""
    if row["speedup_low"] > 1:
        return "pays"
    return "does not pay" if row["speedup_high"] < 1 else "cannot be told"
