"""Summarises timed iterations to rows of Table 2: amortised, paired, with parts that add up. No torch."""

from collections.abc import Callable, Mapping

import pandas as pd

from dlgs_bench.report.load_runs import ABOUT, amortise, by_block, by_launch
from dlgs_bench.stats import LEAST_BLOCKS, Estimate, Spread, pooled, relaunched, repeatable, unpaired
from dlgs_bench.topology import ALL_GATHER

Quantity = Callable[[pd.DataFrame], pd.Series]  # the iterations of one run -> values by block

SETTING = ["model", "topology", "workers"]  # runs with equal values vary equally between launches

OLD = {"optimizer": "sgd"}  # the values of columns that old tables do not have
# The parts of an iteration: means over the workers (see ``dlgs_bench.training.rows.over_workers``).
MEASURED = ["forward_s", "backward_s", "sparsify_s", "waiting_s", "communication_s", "optimizer_s", "other_s"]


def summarise(timing: pd.DataFrame) -> pd.DataFrame:
    """One row per timing run, from the tidy table of iterations.

    ``bound_s``: the shortest forward and backward pass of the row's model, topology and workers, a lower bound of the
    iteration. ``of_bound``: the bound divided by the iteration.
    """
    repeats = Repeats(timing)
    table = pd.DataFrame(_row(run, repeats) for _, run in timing.groupby("run", sort=False))
    if len(table):
        computing_s = table["forward_s"] + table["backward_s"]
        table["bound_s"] = computing_s.groupby([table[key] for key in SETTING]).transform("min")
        table["of_bound"] = table["bound_s"] / table["iteration_s"]
    return table


class Repeats:
    """Estimates from timing runs, with the interval of a repeat.

    The interval comes from the spread between launches. A run has too few launches to estimate it, so the spread is
    pooled over all runs of methods on the same model and topology. Without methods, the runs of uncompressed count. If
    every run has a single launch, the interval comes from its blocks. Two schemes that took turns in the same launches
    are compared block by block.
    """

    def __init__(self, timing: pd.DataFrame) -> None:
        compressed = timing["variant"] != "none"
        alone = ~compressed.groupby([timing[key] for key in SETTING]).transform("any")
        counted = timing[compressed | alone]
        launched = "timed_in" if "timed_in" in timing else "run"  # schemes that took turns share their launches
        self._alike = {
            setting: [[run for _, run in own.groupby("run")] for _, own in rows.groupby(launched)]
            for setting, rows in counted.groupby(SETTING)
        }
        self._spreads: dict[tuple, Spread | None] = {}
        self._values: dict[tuple[str, Quantity], pd.Series] = {}

    def values(self, run: pd.DataFrame, quantity: Quantity) -> pd.Series:
        """``quantity`` of a run, by block; computed once."""
        key = run["run"].iloc[0], quantity
        if key not in self._values:
            self._values[key] = quantity(run)
        return self._values[key]

    def estimate(self, run: pd.DataFrame, quantity: Quantity) -> Estimate:
        """``quantity`` of a run."""
        values, spread = self.values(run, quantity), self._spread(run, quantity)
        return _repeat(values, spread)

    def quotient(self, one: pd.DataFrame, other: pd.DataFrame, quantity: Quantity) -> Estimate:
        """``quantity`` of one run divided by ``quantity`` of another run: block by block, if they took turns."""
        if "timed_in" not in one or one["timed_in"].iloc[0] != other["timed_in"].iloc[0]:
            return unpaired(self.estimate(one, quantity), self.estimate(other, quantity))
        base = self.values(other, quantity)
        together = [
            [self.values(run, quantity) / base for run in runs if run["run"].iloc[0] != other["run"].iloc[0]]
            for runs in self._alike[_setting(one)]
            if runs[0]["timed_in"].iloc[0] == one["timed_in"].iloc[0]
        ]
        values, spread = self.values(one, quantity) / base, _pooled(together)
        return _repeat(values, spread)

    def _spread(self, run: pd.DataFrame, quantity: Quantity) -> Spread | None:
        key = _setting(run), quantity
        if key not in self._spreads:
            alike = self._alike.get(_setting(run), [])
            self._spreads[key] = _pooled([[self.values(scheme, quantity) for scheme in runs] for runs in alike])
        return self._spreads[key]


def _repeat(values: pd.Series, spread: Spread | None) -> Estimate:
    """The estimate from values by block; without an interval if there are fewer than ``LEAST_BLOCKS`` blocks."""
    if spread is None or len(values) < LEAST_BLOCKS:
        return repeatable(values)
    return relaunched(by_launch(values), spread)


def _setting(run: pd.DataFrame) -> tuple:
    return tuple(run[key].iloc[0] for key in SETTING)


def _pooled(every: list[list[pd.Series]]) -> Spread | None:
    """The spread between launches, pooled over runs; each run is a list of the values of schemes that took turns.

    Schemes of a run whose values are the same count once: a quantity of uncompressed is the same for all of them.
    """
    runs = [{tuple(by_launch(one)) for one in run if one.min() > 0} for run in every]
    return pooled(sorted(run) for run in runs if run)


def over_all_gather(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows over all-gather with the smallest number of workers of each model, the configuration's ``workers``."""
    rows = rows[rows["topology"] == ALL_GATHER.name]
    return rows[rows["workers"] == rows.groupby("model")["workers"].transform("min")]


def own_and_dense(run: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The iterations of the run's method, and the iterations of uncompressed in the same blocks."""
    return run[run["timed"] == run["variant"].iloc[0]], run[run["timed"] == "none"]


def seconds(run: pd.DataFrame) -> pd.Series:
    """The iteration time of the run's method, by block."""
    return by_block(own_and_dense(run)[0])


def dense_seconds(run: pd.DataFrame) -> pd.Series:
    """The iteration time of uncompressed in the run, by block."""
    return by_block(own_and_dense(run)[1])


def speedups(run: pd.DataFrame) -> pd.Series:
    """The speed-up against uncompressed in the same block, by block."""
    return dense_seconds(run) / seconds(run)


def in_turns(values: Mapping[str, pd.Series]) -> dict[str, Estimate]:
    """The estimates of one quantity of schemes that took turns in one run, from scheme -> values by block.

    With several launches, the interval comes from the spread between launches, pooled over these schemes.
    """
    spread = _pooled([list(values.values())])
    return {scheme: _repeat(own, spread) for scheme, own in values.items()}


def columns(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    """Name -> value of the estimates, with the columns ``_low`` and ``_high`` for the ends of their intervals."""
    return {
        f"{name}{end}": value
        for name, estimate in estimates.items()
        for end, value in (("", estimate.value), ("_low", estimate.low), ("_high", estimate.high))
    }


def _row(run: pd.DataFrame, repeats: Repeats) -> dict:
    first = run.iloc[0]
    own, _ = own_and_dense(run)
    estimates = {
        name: repeats.estimate(run, quantity)
        for name, quantity in (("iteration_s", seconds), ("dense_s", dense_seconds), ("speedup", speedups))
    }
    row = {key: first.get(key, OLD.get(key, float("nan"))) for key in ABOUT} | columns(estimates)
    blocks = repeats.values(run, seconds)
    row |= {"blocks": len(blocks), "launches": len(by_launch(blocks))}
    row |= _links(run)
    row["enough"] = estimates["speedup"].enough
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


def _links(run: pd.DataFrame) -> dict[str, float]:
    """The median rate of the links in Mb/s, and by which factors it differed from ``rate_mbit``: the smallest and the
    largest of a block.

    Links in proportion follow the machine's speed. The factors are NaN for old tables without a slowdown.
    """
    factors = 1 / run["slowdown"] if "slowdown" in run else pd.Series(dtype=float)
    middle, rate_mbit = factors.median(), run["rate_mbit"].iloc[0]
    median_mbit = rate_mbit if pd.isna(middle) or middle == 1 else float(f"{rate_mbit * middle:.3g}")
    return {"links_mbit": median_mbit, "links_low": factors.min(), "links_high": factors.max()}


def _parts(own: pd.DataFrame, iteration_s: float) -> dict[str, float]:
    """The parts of the iteration: means over the middle half of each phase's iterations.

    Means are used because they add up, which medians do not. The middle half leaves outliers out. The means are scaled
    (by about 1 %) to add up to the iteration's median over blocks.
    """
    middle = pd.concat(_middle_half(phase) for _, phase in own.groupby("phase"))
    shares = middle.groupby("phase")["share"].first()
    means = middle.groupby("phase")[MEASURED].mean().mul(shares, axis=0).sum() / shares.sum()
    return (means * iteration_s / means.sum()).to_dict()


def _middle_half(phase: pd.DataFrame) -> pd.DataFrame:
    """The half of the iterations, rounded up, whose time is nearest to the median."""
    distance = (phase["iteration_s"] - phase["iteration_s"].median()).abs()
    return phase.loc[distance.sort_values(kind="stable").index[: -(-len(phase) // 2)]]
