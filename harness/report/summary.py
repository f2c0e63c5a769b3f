"""From timed iterations to a row of Table 2: amortised, paired, and adding up. No torch."""

import pandas as pd

from harness.report.tidy import ABOUT

MEASURED = ["forward_s", "backward_s", "sparsify_s", "communication_s", "optimizer_s", "other_s"]


def summarise(timing: pd.DataFrame) -> pd.DataFrame:
    """One row per timing run, from the tidy table of iterations."""
    return pd.DataFrame(_row(run) for _, run in timing.groupby("run", sort=False))


def amortise(iterations: pd.DataFrame, column: str) -> float:
    """The median of ``column`` over each phase, weighted by the phase's share of a cycle."""
    medians = iterations.groupby("phase")[column].median()
    shares = iterations.groupby("phase")["share"].first()
    return float((medians * shares).sum() / shares.sum())


def compare(own: pd.DataFrame, dense: pd.DataFrame) -> dict[str, float]:
    """Iteration time of a variant, and its speed-up against ``dense`` in the same blocks: median, least, most."""
    by_block, dense_by_block = (
        pd.Series([amortise(block, "iteration_s") for _, block in rows.groupby("block")]) for rows in (own, dense)
    )
    speedups = dense_by_block / by_block
    return {
        "iteration_s": amortise(own, "iteration_s"),
        "iteration_s_min": by_block.min(),
        "iteration_s_max": by_block.max(),
        "speedup": speedups.median(),
        "speedup_min": speedups.min(),
        "speedup_max": speedups.max(),
    }


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
    row |= _parts(own)
    row["blocks"] = own["block"].nunique()
    row["iterations"] = len(own)
    row["phases"] = "; ".join(f"{phase} {len(rows)}" for phase, rows in own.groupby("phase"))
    return row


def _parts(own: pd.DataFrame) -> dict[str, float]:
    """The parts of the iteration: means over the middle half of each phase's iterations.

    Means add up and medians do not; the middle half keeps the outliers out, as the median does. They
    are scaled (by a per cent or so) to add up to the median iteration.
    """
    middle = pd.concat(_middle_half(phase) for _, phase in own.groupby("phase"))
    shares = middle.groupby("phase")["share"].first()
    means = middle.groupby("phase")[MEASURED].mean().mul(shares, axis=0).sum() / shares.sum()
    return (means * amortise(own, "iteration_s") / means.sum()).to_dict()


def _middle_half(phase: pd.DataFrame) -> pd.DataFrame:
    """The half of the iterations (rounded up) whose time is nearest to the median."""
    distance = (phase["iteration_s"] - phase["iteration_s"].median()).abs()
    return phase.loc[distance.sort_values(kind="stable").index[: -(-len(phase) // 2)]]
