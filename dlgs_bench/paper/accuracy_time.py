"""Accuracy against time: the curves of kept accuracy runs, whose steps take the iterations of Table 2. No torch.

Iterations were measured over links that stand for the links of the paper's nodes. Over slower links the bytes of an
iteration take longer. That makes the iteration longer, unless the worker still computes while they travel.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from dlgs_bench.report import captions, curves
from dlgs_bench.report.summary import summarise
from dlgs_bench.topology import ALL_GATHER

NODES_GBIT = 50  # the paper's nodes
PREDICTED_GBIT = (25, 10)
WORKERS = 2  # of the kept runs: a link carries what a worker sends, whether it is summed or gathered
METHOD = ["variant", "ratio", "refresh_every"]
SETTING = ["model", "precision"]  # a curve is compared with uncompressed in the same precision
ENDS = ("", "_low", "_high")

Rows = list[dict[str, Any]]


def comparable_points(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The points of the kept runs that can be compared with Table 2: two workers over all-gather.

    A run that several tables hold, as a reference for their methods, counts once.
    """
    points = pd.concat(tables, ignore_index=True).drop_duplicates(["run", "precision", "step"])
    return points[(points["topology"] == ALL_GATHER.name) & (points["workers"] == WORKERS)]


def seeds(points: pd.DataFrame) -> str:
    """How many seeds the curves have, for a caption."""
    return f"{captions.number_of_seeds(points)}; a method and uncompressed in the same precision"


def slower_s(row: dict[str, Any], times: float) -> tuple[float, float]:
    """The least and the most that an iteration takes over links that are this number of times as slow, in seconds.

    ``row``: a row of Table 2. The most: nothing more is computed while the bytes travel. The least: they travel during
    the whole of backward; but if the worker waited for all bytes when it was measured, it waits for all bytes here.
    """
    link_s = row["sent_bytes"] * 8e-6 / row["links_mbit"]
    most = row["iteration_s"] + (times - 1) * link_s
    if row["communication_s"] >= link_s:
        return most, most
    exposed = row["forward_s"] + times * link_s + row["optimizer_s"] + row["other_s"]
    return min(most, max(row["iteration_s"], exposed)), most


def timed(timing: pd.DataFrame) -> pd.DataFrame:
    """The timed iterations that can be compared with the kept runs."""
    own = (timing["topology"] == ALL_GATHER.name) & (timing["workers"] == WORKERS) & (timing["network"] == "testbed")
    return timing[own]


def iterations(timing: pd.DataFrame) -> pd.DataFrame:
    """One row for each model, method and rate: ``gbit``, ``how``, ``iteration_s``, and ``quotient``, which is the
    iteration divided by the iteration of uncompressed; both with ``_low`` and ``_high``.

    Measured: the interval of a repeat. Predicted: the middle, the least and the most.
    """
    table = summarise(timed(timing))
    keys = ["model", *METHOD]
    if table.duplicated(keys).any():
        twice = table[table.duplicated(keys)].iloc[0]
        raise ValueError(f"timing: {twice['run']} is timed twice over all-gather with {WORKERS} workers; keep one")
    rows: Rows = []
    for _, here in table.groupby("model", sort=False):
        dense = here[here["variant"] == "none"].iloc[0].to_dict()
        for row in here.to_dict("records"):
            metadata = {key: row[key] for key in (*keys, "data", "blocks")}
            rows.append(metadata | _measured(row))
            rows += [metadata | _predicted(row, dense, gbit) for gbit in PREDICTED_GBIT]
    return pd.DataFrame(rows)


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    values = {f"iteration_s{end}": row[f"iteration_s{end}"] for end in ENDS}
    quotients = {"quotient": "speedup", "quotient_low": "speedup_high", "quotient_high": "speedup_low"}
    values |= {name: 1 / row[speedup] for name, speedup in quotients.items()}
    return {"gbit": NODES_GBIT, "how": "measured"} | values


def _predicted(row: dict[str, Any], dense: dict[str, Any], gbit: float) -> dict[str, Any]:
    (least, most), (dense_least, dense_most) = (slower_s(one, NODES_GBIT / gbit) for one in (row, dense))
    values = {"iteration_s": (least + most) / 2, "iteration_s_low": least, "iteration_s_high": most}
    quotients = ((least + most) / (dense_least + dense_most), least / dense_most, most / dense_least)
    if row["variant"] == "none":
        quotients = (1.0, 1.0, 1.0)
    return {"gbit": gbit, "how": "predicted"} | values | dict(zip(_ends("quotient"), quotients, strict=True))


def _ends(name: str) -> list[str]:
    return [f"{name}{end}" for end in ENDS]


def pairs(points: pd.DataFrame) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """(points of a method, points of uncompressed in the same precision), in the order of ``points``."""
    matched = []
    for _, rows in points.groupby([*SETTING, *METHOD], dropna=False, sort=False):
        alike = (points[SETTING] == rows[SETTING].iloc[0]).all(axis=1)
        dense = points[alike & (points["variant"] == "none")]
        if rows["variant"].iloc[0] != "none" and len(dense):
            matched.append((rows, dense))
    return matched


def times(points: pd.DataFrame, every: pd.DataFrame, targets: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """One row for each method, target and rate: ``seconds`` to the target, and ``relative``, divided by the time of
    uncompressed. Infinite if the run never reaches the target, NaN if uncompressed never does.

    Only seeds that both have count, if there are any. ``every``: ``iterations``. ``targets``: of each model. Methods
    that Table 2 does not have are left out.
    """
    rows: Rows = []
    for own, dense in pairs(points):
        if both := set(own["seed"]) & set(dense["seed"]):
            own, dense = (rows[rows["seed"].isin(both)] for rows in (own, dense))
        first = own.iloc[0]
        metadata = {key: first[key] for key in (*SETTING, *METHOD)} | {"seeds": own["seed"].nunique()}
        for target in targets.get(first["model"], ()):
            steps, dense_steps = (curves.steps_to(curves.mean(rows), target) for rows in (own, dense))
            more = steps / dense_steps if math.isfinite(dense_steps) else math.nan
            rows.append(metadata | {"target": target, "steps": steps, "dense_steps": dense_steps, "more_steps": more})
    table = pd.DataFrame(rows).merge(every, on=["model", *METHOD])
    for end in ENDS:
        table[f"seconds{end}"] = table["steps"] * table[f"iteration_s{end}"]
        table[f"relative{end}"] = table["more_steps"] * table[f"quotient{end}"]
    return table


def lines(points: pd.DataFrame, every: pd.DataFrame) -> pd.DataFrame:
    """The curves of every panel: ``ratio`` is the panel's, and ``hours`` with its range the time of a point.

    Uncompressed and methods without a ratio are in every panel of their model. A model that was timed on other data
    than it was trained on has no curve: a step is not such an iteration.
    """
    rows = []
    for own, dense in pairs(points):
        ratios = own["ratio"].dropna().unique()
        if not len(ratios):
            ratios = points.loc[(points[SETTING] == own[SETTING].iloc[0]).all(axis=1), "ratio"].dropna().unique()
        for curve, ratio in product((own, dense), ratios):
            mean = curves.mean(curve).assign(**{key: curve.iloc[0][key] for key in (*SETTING, *METHOD, "data")})
            rows.append(mean.merge(every, on=["model", "data", *METHOD]).assign(ratio=ratio))
    drawn = pd.concat(rows).drop_duplicates([*SETTING, *METHOD, "gbit", "step"])
    return drawn.assign(**{f"hours{end}": drawn["step"] * drawn[f"iteration_s{end}"] / 3600 for end in ENDS})


def errors(timing: pd.DataFrame) -> pd.Series:
    """The relative errors of iterations predicted from the fastest links of a study of link rates, at its others.

    Without disturbed runs.
    """
    table = summarise(timing)
    table = table[table["disturbed"].isna()]
    fastest = table[table["rate_mbit"] == table["rate_mbit"].max()]
    keys = ["model", *METHOD, "selection"]
    both = table.merge(fastest, on=keys, suffixes=("", "_fastest"))
    relative_errors = []
    for row in both[both["rate_mbit"] < both["rate_mbit_fastest"]].to_dict("records"):
        there = {name: row[f"{name}_fastest"] for name in fastest if name not in keys}
        predicted_s = sum(slower_s(there, there["links_mbit"] / row["links_mbit"])) / 2
        relative_errors.append(predicted_s / row["iteration_s"] - 1)
    return pd.Series(relative_errors)
