"""Whether compressing gradients pays on a network that is described: predictions, ranked, with the error that they had
where they were held against measurements. No torch."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.predict import Projection

COVERED = 0.9  # of the predictions lie within the error that is stated
LEAST_SAVED = 0.05  # of an iteration: what would save less does not limit it
COMPUTING = "computing"
RATES_MBIT = np.geomspace(1, 1e6, 25).tolist()  # at which a break-even is looked for


def iteration_s(known: Projection, there: Network, slowdown: float = 1.0) -> float:
    """One iteration ``there``, on nodes that compute, select and handle messages ``slowdown`` times as fast as this
    machine."""
    return known.iteration_s(_slowed(there, slowdown)) / slowdown


def predicted(known: Projection, there: Network, slowdown: float = 1.0) -> dict:
    """As ``iteration_s``, with what limits it (``limit``) and how much shorter it would be if that cost nothing
    (``limit_s``)."""
    whole_s, saved = iteration_s(known, there, slowdown), known.saved(_slowed(there, slowdown))
    what = max(saved, key=saved.__getitem__)
    limits = saved[what] / slowdown >= LEAST_SAVED * whole_s
    limit = {"limit": what, "limit_s": saved[what] / slowdown} if limits else {"limit": COMPUTING, "limit_s": math.nan}
    return {"iteration_s": whole_s} | limit


def fastest_s(known: Projection, there: Network, slowdown: float = 1.0) -> float:
    """As ``iteration_s``, by the collective that is the fastest there."""
    return min(iteration_s(way, there, slowdown) for way in known.ways(there.workers))


def errors(checked: pd.DataFrame) -> pd.Series:
    """The factor, at least 1, by which each predicted speed-up was off."""
    return np.exp(np.abs(np.log(checked["predicted_speedup"] / checked["speedup"])))


def margin(checked: pd.DataFrame) -> float:
    """The factor within which the next speed-up of the kind that was checked lies in 9 of 10 cases, infinite where too
    few were checked to know (split conformal prediction; Lei et al., Distribution-Free Predictive Inference, 2018)."""
    off = np.sort(errors(checked))
    place = math.ceil(COVERED * (len(off) + 1))
    return float(off[place - 1]) if place <= len(off) else math.inf


def ranked(table: pd.DataFrame, factor: float) -> pd.DataFrame:
    """Predictions of every model over each topology, the fastest first, each against the fastest uncompressed of the
    same model and topology: ``dense_s`` and ``speedup``, with an interval of ``factor`` to either side.

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


def _slowed(there: Network, slowdown: float) -> Network:
    """The network over which this machine computes and communicates in the proportion of those nodes."""
    return Network(there.workers, there.rate_mbit / slowdown, there.latency_ms * slowdown)


def break_even_mbit(dense: Projection, own: Projection, there: Network, speedup: float = 1.0) -> float:
    """The rate of the links below which ``own`` is predicted to have more than this ``speedup``, in Mbit/s.

    Infinite if it has at every rate, 0 if at none. If it crosses the speed-up several times, the highest crossing
    counts. ``there``: workers and latency; its rate is not used.
    """

    def gain(rate_mbit: float) -> float:
        network = replace(there, rate_mbit=rate_mbit)
        return math.log(dense.iteration_s(network) / own.iteration_s(network) / speedup)

    above, faster_rate = math.nan, RATES_MBIT[-1]
    for rate in RATES_MBIT[::-1]:  # from the fastest links down: planning takes seconds for a deep model
        here = gain(rate)
        if here > 0:
            if math.isnan(above):
                return math.inf
            return rate * (faster_rate / rate) ** (here / (here - above))  # a line over the logarithm of the rate
        above, faster_rate = here, rate
    return 0.0
