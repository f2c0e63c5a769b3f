"""What the paper states, held against our tidy tables. No torch.

Every statement is a set of comparisons, one for each model, ratio and topology that was measured. A comparison is a
number, such as the time of LAGS by that of DLGS, with the interval in which a repeat's would lie. The statement holds
there only if the whole interval is on its side of a bound, and does not hold only if the whole interval is on the
other.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product

import pandas as pd

from harness.report import captions
from harness.report.names import Names, at_ratio
from harness.report.summary import Quantity, Repeats, own_and_dense, speedups
from harness.report.tidy import by_block
from harness.statistics import LEAST_BLOCKS, Estimate, repeatable, unpaired
from harness.topology import ALL_GATHER, TOPOLOGIES

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told here"
PAPERS = ("none", "topk", "lags", "dlgs")  # the paper's methods; variants of other names are none of its business
LITTLE = 1.1  # times as fast: our reading of "gains little"
PAPERS_SPEEDUP, PAPERS_RATIO = 1.99, 0.01
SETTLED, BEFORE, AFTER = 40, 79, 85  # epochs; the learning rate falls at 80
FLOOR = 1e-4  # of a training error
SHORT = "trained too few epochs"


@dataclass(frozen=True)
class Comparison:
    """One number of ours beside one statement. ``which``: what is compared, where a statement has several."""

    model: str
    topology: str = ALL_GATHER.name
    ratio: float | None = None
    which: str = ""
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0
    verdict: str = UNKNOWN
    why: str = ""


def judge(found: Estimate, bound: float = 1.0) -> tuple[str, str]:
    """The verdict on "above ``bound``", and why."""
    if not found.enough:
        return UNKNOWN, f"n is below {LEAST_BLOCKS}"
    if found.low > bound:
        return HOLDS, f"the interval lies above {bound:g}"
    if found.high < bound:
        return FAILS, f"the interval lies below {bound:g}"
    return UNKNOWN, f"a repeat may lie on either side of {bound:g}"


def judged(found: Estimate, n: int, bound: float = 1.0, below: bool = False, **about) -> Comparison:
    """``n``: blocks or seeds; ``below``: the statement is "below ``bound``"."""
    verdict, why = judge(found, bound)
    if below:
        verdict = {HOLDS: FAILS, FAILS: HOLDS}.get(verdict, verdict)
    return Comparison(**about, value=found.value, low=found.low, high=found.high, n=n, verdict=verdict, why=why)


class Timing:
    """The timing runs of the paper's methods, from the tidy table of one configuration."""

    def __init__(self, timing: pd.DataFrame):
        ours = timing[timing["variant"].isin(PAPERS)]
        self._settings = dict(iter(ours.groupby(["model", "topology"], sort=False)))
        self.estimate = Repeats(ours).estimate

    def cells(self) -> Iterator[tuple[dict, dict[str, pd.DataFrame]]]:
        """What a cell is, and the iterations of its runs by method. A method without a ratio is in every cell."""
        for (model, topology), rows in self._settings.items():
            for ratio in sorted(rows["ratio"].dropna().unique(), reverse=True):
                here = rows[rows["ratio"].isna() | (rows["ratio"] == ratio)]
                runs = dict(iter(here.groupby("variant", sort=False)))
                yield {"model": model, "topology": topology, "ratio": ratio}, runs

    def uncompressed(self) -> Iterator[tuple[dict, pd.DataFrame]]:
        """What a setting is, and the iterations of its own run of uncompressed, if there is one."""
        for (model, topology), rows in self._settings.items():
            own = rows[rows["variant"] == "none"]
            if len(own):
                yield {"model": model, "topology": topology}, own

    def quotient(self, one: pd.DataFrame, other: pd.DataFrame, quantity: Quantity) -> Estimate:
        """``quantity`` of one run by that of another; the two are not paired."""
        return unpaired(self.estimate(one, quantity), self.estimate(other, quantity))


def computation(rows: pd.DataFrame) -> pd.Series:
    """Seconds of forward and backward, by block."""
    return by_block(rows, "forward_s") + by_block(rows, "backward_s")


def sparsification(run: pd.DataFrame) -> pd.Series:
    """By block, against the computation of uncompressed in the same block, so that a drifting machine moves both."""
    own, dense = own_and_dense(run)
    return by_block(own, "sparsify_s") / computation(dense)


def left(run: pd.DataFrame) -> pd.Series:
    """By block of uncompressed, the communication left to wait for after backward, by computation."""
    _, dense = own_and_dense(run)
    return by_block(dense, "communication_s").clip(lower=1e-9) / computation(dense)


def left_and_backward(run: pd.DataFrame) -> pd.Series:
    """By block of uncompressed, as much communication as can be, by computation."""
    _, dense = own_and_dense(run)
    return left(run) + by_block(dense, "backward_s") / computation(dense)


def unusable(runs: dict[str, pd.DataFrame], *methods: str) -> str:
    """Why these methods of a cell cannot be compared; empty if they can."""
    missing = [method for method in methods if method not in runs]
    if missing:
        return f"no run of {' and '.join(missing)}"
    disturbed = [method for method in methods if runs[method]["disturbed"].notna().any()]
    return f"disturbed: {' and '.join(disturbed)}" if disturbed else ""


def between(timing: Timing, one: str, other: str, quantity=speedups, which: str = "", **bound) -> list[Comparison]:
    """``quantity`` of one method by that of another, in every cell."""
    found = []
    for about, runs in timing.cells():
        why = unusable(runs, one, other)
        if why:
            found.append(Comparison(**about, which=which, why=why))
            continue
        blocks = [quantity(runs[method]) for method in (one, other)]
        if min(values.min() for values in blocks) <= 0:
            found.append(Comparison(**about, which=which, why="it took no time that a clock could show"))
            continue
        value = timing.quotient(runs[one], runs[other], quantity)
        found.append(judged(value, min(map(len, blocks)), **bound, **about, which=which))
    return found


def against_uncompressed(timing: Timing, method: str, bound: float = 1.0) -> list[Comparison]:
    """The speed-up of a method in every cell."""
    found = []
    for about, runs in timing.cells():
        why = unusable(runs, method)
        if why:
            found.append(Comparison(**about, why=why))
            continue
        n = len(speedups(runs[method]))
        found.append(judged(timing.estimate(runs[method], speedups), n, bound, **about))
    return found


def largest_speedup(timing: Timing) -> list[Comparison]:
    """Of DLGS at the ratio of the paper's largest: the cell where it is largest stands for all of them."""
    cells = [c for c in against_uncompressed(timing, "dlgs", PAPERS_SPEEDUP) if c.ratio == PAPERS_RATIO and c.n]
    if not cells:
        return [Comparison("", ratio=PAPERS_RATIO, why="no run of dlgs at this ratio")]
    if all(cell.verdict == FAILS for cell in cells):
        return [max(cells, key=lambda cell: cell.value)]
    undecided = [cell for cell in cells if cell.verdict != FAILS]
    return [max(undecided, key=lambda cell: (cell.verdict == HOLDS, cell.value))]


def little_on_vgg16(timing: Timing) -> list[Comparison]:
    """DLGS by each of the other compressors."""
    every = [
        comparison
        for other in ("lags", "topk")
        for comparison in between(timing, "dlgs", other, which=f"against {other}", bound=LITTLE, below=True)
    ]
    return [comparison for comparison in every if comparison.model == "vgg16"]


def communicating(timing: Timing) -> list[Comparison]:
    """Communication by computation, of uncompressed.

    What is measured is the communication left to wait for after backward. The whole takes at least as long, and longer
    by backward at most: the one shows that it is longer than computation, the other that it is shorter.
    """
    found = []
    for about, run in timing.uncompressed():
        why = unusable({"none": run}, "none")
        if why:
            found.append(Comparison(**about, why=why))
            continue
        least, most = (
            judged(timing.estimate(run, part), len(part(run)), which=which, **about)
            for which, part in (("at least", left), ("at most", left_and_backward))
        )
        hidden = replace(least, verdict=UNKNOWN, why="backward hides a part that is not known")
        found.append(most if most.verdict == FAILS else hidden if least.verdict == FAILS else least)
    return found


def second_to_uncompressed(accuracy: pd.DataFrame) -> list[Comparison]:
    """Final training accuracies, by seed."""
    ours = accuracy[accuracy["variant"].isin(PAPERS)]
    last = ours[ours["step"] == ours.groupby("run")["step"].transform("max")]
    found = []
    for model, rows in last.groupby("model", sort=False):
        if captions.too_short(rows.iloc[0]):
            found.append(Comparison(model, which=trained(rows), why=SHORT))
            continue
        ratios = sorted(rows["ratio"].dropna().unique(), reverse=True)
        for ratio, (above, under) in product(ratios, [("dlgs", "lags"), ("dlgs", "topk"), ("none", "dlgs")]):
            about = {"model": model, "ratio": ratio, "which": f"{above} by {under}"}
            here = rows[rows["ratio"].isna() | (rows["ratio"] == ratio)]
            why = unusable(dict(iter(here.groupby("variant"))), above, under)
            if why:
                found.append(Comparison(**about, why=why))
                continue
            both = here.pivot_table(index="seed", columns="variant", values="train_accuracy")[[above, under]].dropna()
            found.append(judged(repeatable(both[above] / both[under]), len(both), **about))
    return found


def settles_and_jumps(accuracy: pd.DataFrame) -> list[Comparison]:
    """By how much training error falls when the learning rate does, against how much it fell since epoch 40.

    Over all runs of a model whose recipe is longer than 80 epochs; of a schedule that was scaled, at its epochs.
    """
    found = []
    for model, rows in accuracy[accuracy["variant"].isin(PAPERS)].groupby("model", sort=False):
        first = rows.iloc[0]
        if first["epochs"] <= AFTER:
            continue
        if captions.too_short(first):
            found.append(Comparison(model, which=trained(rows), why=SHORT))
            continue
        scale = first["train_epochs"] / first["epochs"]
        errors = [errors_at(points, scale) for _, points in rows.groupby("run", sort=False)]
        if None in errors:
            why = f"a curve has no points near epochs {SETTLED}, {BEFORE} and {AFTER}"
            found.append(Comparison(model, why=why))
            continue
        falls = [(before / after) / (settled / before) for settled, before, after in errors]
        found.append(judged(repeatable(falls), len(falls), model=model))
    return found


def errors_at(points: pd.DataFrame, scale: float) -> list[float] | None:
    """Training errors at the three epochs, each times ``scale``; None where the curve has no point within one, or
    within half an epoch of a scaled schedule, which has a point an epoch at best."""
    found = []
    for epoch in (SETTLED, BEFORE, AFTER):
        distance = (points["epoch"] / scale - epoch).abs()
        if distance.min() > max(1, 0.5 / scale):
            return None
        found.append(max(FLOOR, 1 - points.loc[distance.idxmin(), "train_accuracy"]))
    return found


def trained(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return f"{first['train_epochs']:g} of {first['epochs']:g} epochs"


ORDER = ("Top-K trains faster than uncompressed", "LAGS trains faster than Top-K", "DLGS trains faster than LAGS")
ON_VGG16 = "On VGG16 DLGS gains little over the other compressors (read as: less than 10 %)"
# statement -> what is compared, and the comparisons in the timing runs, or in the accuracy runs
TIMED = {
    ORDER[0]: (
        "speed-up of Top-K against uncompressed",
        lambda timing: against_uncompressed(timing, "topk"),
    ),
    ORDER[1]: (
        "speed-up of LAGS by that of Top-K",
        lambda timing: between(timing, "lags", "topk"),
    ),
    ORDER[2]: (
        "speed-up of DLGS by that of LAGS",
        lambda timing: between(timing, "dlgs", "lags"),
    ),
    f"At ratio {PAPERS_RATIO:g} DLGS trains up to {PAPERS_SPEEDUP:g} times as fast as uncompressed": (
        "the largest speed-up of DLGS",
        largest_speedup,
    ),
    ON_VGG16: (
        "speed-up of DLGS by that of the other",
        little_on_vgg16,
    ),
    "Uncompressed communication takes far longer than computation (read as: longer)": (
        "communication by computation, at least what is left to wait for after backward",
        communicating,
    ),
    "LAGS sparsifies longer than Top-K": (
        "sparsification of LAGS by that of Top-K",
        lambda timing: between(timing, "lags", "topk", sparsification),
    ),
}
LEARNT = {
    "DLGS's training accuracy is second only to that of uncompressed": (
        "final training accuracy of one by the other's, of the same seed",
        second_to_uncompressed,
    ),
    "Accuracy settles near epoch 40 and jumps at epoch 80": (
        f"fall of the training error from epoch {BEFORE} to {AFTER} by that from {SETTLED} to {BEFORE}",
        settles_and_jumps,
    ),
}


def compare(timing: pd.DataFrame | None, accuracy: pd.DataFrame) -> pd.DataFrame:
    """One row per comparison: ``statement``, ``number`` (what is compared), and the fields of ``Comparison``.

    Nothing of what is timed without ``timing``.
    """
    found = [(LEARNT, accuracy)] if timing is None else [(TIMED, Timing(timing)), (LEARNT, accuracy)]
    return pd.DataFrame(
        {"statement": statement, "number": number} | asdict(comparison)
        for statements, table in found
        for statement, (number, comparisons) in statements.items()
        for comparison in comparisons(table)
    )


def shown(compared: pd.DataFrame, names: Names) -> pd.DataFrame:
    """One row per statement, verdict and reason, with all comparisons that led to it."""
    order = compared["verdict"].map([HOLDS, FAILS, UNKNOWN].index)
    places = compared["statement"].map(list(dict.fromkeys(compared["statement"])).index)
    compared = compared.assign(order=order, place=places).sort_values(["place", "order"], kind="stable")
    return pd.DataFrame(
        {
            "The paper states": statement,
            "Verdict": verdict,
            "Measured": f"{rows['number'].iloc[0]}. "
            + "; ".join(figure(row, names) for row in rows.to_dict("records")),
            "Why": named(why, names),
        }
        for (statement, verdict, why), rows in compared.groupby(["statement", "verdict", "why"], sort=False)
    )


def figure(row: dict, names: Names) -> str:
    """Where, the number, its interval, and n."""
    parts = [names.model(row["model"])] if row["model"] else []
    parts += [TOPOLOGIES[row["topology"]].title] if row["topology"] != ALL_GATHER.name else []
    parts += [named(row["which"], names)] if row["which"] else []
    where = ", ".join(parts) + at_ratio(row["ratio"])
    if pd.isna(row["value"]):
        return where
    return f"{where}: {row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}], n = {row['n']}"


def named(words: str, names: Names) -> str:
    """The words with the titles of the paper's methods in the place of their names."""
    return " ".join(names.variant(word) if word in PAPERS else word for word in words.split(" "))
