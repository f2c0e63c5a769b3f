"""From timed iterations to a row of Table 2: amortised, paired, and adding up. No torch."""

import pandas as pd

from harness.report.tidy import ABOUT
from harness.statistics import amortised, repeatable

# What an iteration is made of: means over the workers (see ``harness.training.rows.over_workers``).
MEASURED = ["forward_s", "backward_s", "sparsify_s", "waiting_s", "communication_s", "optimizer_s", "other_s"]


def summarise(timing: pd.DataFrame) -> pd.DataFrame:
    """One row per timing run, from the tidy table of iterations."""
    return pd.DataFrame(_row(run) for _, run in timing.groupby("run", sort=False))


def amortise(iterations: pd.DataFrame, column: str) -> float:
    """The median of ``column`` over each phase, weighted by the phase's share of a cycle."""
    return amortised(zip(iterations[column], iterations["phase"], iterations["share"], strict=True))


def compare(own: pd.DataFrame, dense: pd.DataFrame) -> dict[str, float]:
    """Iteration time of a variant and of uncompressed in the same blocks, and the speed-up: medians over blocks,
    with the intervals (``_low``, ``_high``) of a repeat."""
    seconds, dense_seconds = (by_block(rows) for rows in (own, dense))
    compared = {"iteration_s": seconds, "dense_s": dense_seconds, "speedup": dense_seconds / seconds}
    found = {"blocks": len(seconds)}
    for name, values in compared.items():
        estimate = repeatable(values)
        found |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return found


def by_block(rows: pd.DataFrame, column: str = "iteration_s") -> pd.Series:
    """``column`` of an iteration in each block of each launch; a run of one launch does not number it."""
    numbers = [number for number in ("launch", "block") if number in rows]
    return pd.Series([amortise(block, column) for _, block in rows.groupby(numbers, dropna=False)])


def _row(run: pd.DataFrame) -> dict:
    first = run.iloc[0]
    own = run[run["timed"] == first["variant"]]
    row = {key: first[key] for key in ABOUT} | compare(own, run[run["timed"] == "none"])
    steps = -(-first["train_samples"] // (first["batch"] * first["workers"]))
    row["epoch_s"] = row["iteration_s"] * steps
    row["training_s"] = row["epoch_s"] * first["epochs"]
    row["sent_bytes"] = amortise(own, "sent_bytes")
    row["received_bytes"] = amortise(own, "received_bytes")
    row["density"] = amortise(own, "density")
    row |= _parts(own, row["iteration_s"])
    row["computing"] = (row["forward_s"] + row["backward_s"]) / row["iteration_s"]
    row["iterations"] = len(own)
    row["phases"] = "; ".join(f"{phase} {len(rows)}" for phase, rows in own.groupby("phase"))
    return row


def _parts(own: pd.DataFrame, iteration_s: float) -> dict[str, float]:
    """The parts of the iteration: means over the middle half of each phase's iterations.

    Means add up and medians do not; the middle half keeps the outliers out, as the median does. They
    are scaled (by a per cent or so) to add up to the iteration's median over blocks.
    """
    middle = pd.concat(_middle_half(phase) for _, phase in own.groupby("phase"))
    shares = middle.groupby("phase")["share"].first()
    means = middle.groupby("phase")[MEASURED].mean().mul(shares, axis=0).sum() / shares.sum()
    return (means * iteration_s / means.sum()).to_dict()


def _middle_half(phase: pd.DataFrame) -> pd.DataFrame:
    """The half of the iterations (rounded up) whose time is nearest to the median."""
    distance = (phase["iteration_s"] - phase["iteration_s"].median()).abs()
    return phase.loc[distance.sort_values(kind="stable").index[: -(-len(phase) // 2)]]
