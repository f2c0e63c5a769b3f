"""What the paper states, held against our tidy tables. No torch.

Every statement is a set of comparisons, one for each model, ratio and topology that was measured. A comparison is a
number, such as the time of LAGS by that of DLGS, with the interval in which a repeat's would lie. The statement holds
there only if the whole interval is on its side of a bound, and does not hold only if the whole interval is on the
other.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import exp, log

import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.report import captions
from dlgs_bench.report.load_runs import by_block
from dlgs_bench.report.names import Names, at_ratio
from dlgs_bench.report.summary import SETTING, Quantity, Repeats, own_and_dense, speedups
from dlgs_bench.stats import LEAST_BLOCKS, Estimate, quantile_of_t, repeatable
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told here"
PAPERS = ("none", "topk", "lags", "dlgs")  # the paper's methods; variants of other names are none of its business
LITTLE = 1.1  # times as fast: our reading of "gains little"
PAPERS_SPEEDUP, PAPERS_RATIO = 1.99, 0.01
PAPERS_BATCH = {"resnet20": 32, "vgg16": 32, "resnet50": 64}  # samples per worker and step
CLOSE = 0.01  # our reading of "very close" accuracies: one point
CLOSE_LOSS = 1.05  # our reading of "very close" losses: their quotient
NEAR_START, START = 0.02, 1.0  # our reading of "differ little" at the start: two points, after one epoch
MARKEDLY = 1.1  # our reading of "markedly better": by 10 %
OPTIMAL = 1.05  # our reading of "optimal": within 5 % of the exact plan
STEADY = 2.0  # our reading of "thresholds differ little": the density lies within this factor of the ratio
SETTLED, BEFORE, AFTER = 40, 79, 85  # epochs; the learning rate falls at 80
FLOOR = 1e-4  # of a training error
SHORT, NO_TIME = "trained too few epochs", "it took no time that a clock could show"
STEPS_OF_DENSITY = 100  # of training: fewer show the start alone


@dataclass(frozen=True)
class Comparison:
    """One number of ours beside one statement. ``which``: what is compared, where a statement has several."""

    model: str
    topology: str = ALL_GATHER.name
    workers: int = 0  # 0: as usual
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
        self._settings = dict(iter(ours.groupby(SETTING, sort=False)))
        self._usual = usual_workers(ours)
        self.batches = ours.groupby("model")["batch"].first().to_dict()
        repeats = Repeats(ours)
        self.estimate, self.quotient = repeats.estimate, repeats.quotient

    def cells(self) -> Iterator[tuple[dict, dict[str, pd.DataFrame]]]:
        """What a cell is, and the iterations of its runs by method. A method without a ratio is in every cell."""
        for setting, rows in self._settings.items():
            for ratio in sorted(rows["ratio"].dropna().unique(), reverse=True):
                here = rows[rows["ratio"].isna() | (rows["ratio"] == ratio)]
                runs = dict(iter(here.groupby("variant", sort=False)))
                yield self._about(*setting) | {"ratio": ratio}, runs

    def uncompressed(self) -> Iterator[tuple[dict, pd.DataFrame]]:
        """What a setting is, and the iterations of its own run of uncompressed, if there is one."""
        for setting, rows in self._settings.items():
            own = rows[rows["variant"] == "none"]
            if len(own):
                yield self._about(*setting), own

    def _about(self, model: str, topology: str, workers: int) -> dict:
        """What a setting is; the number of workers only if it is not the usual one over this topology."""
        usual = self._usual[topology] == workers
        return {"model": model, "topology": topology, "workers": 0 if usual else int(workers)}


def usual_workers(timing: pd.DataFrame) -> dict[str, int]:
    """topology -> the smallest number of workers that was timed over it: a configuration's own."""
    return timing.groupby("topology")["workers"].min().to_dict()


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
            found.append(Comparison(**about, which=which, why=NO_TIME))
            continue
        value = timing.quotient(runs[one], runs[other], quantity)
        found.append(judged(value, min(map(len, blocks)), **bound, **about, which=which))
    return found


def against_uncompressed(
    timing: Timing, method: str, bound: float = 1.0, quantity: Quantity = speedups, zero: str = NO_TIME
) -> list[Comparison]:
    """The speed-up of a method in every cell, or another quantity that compares it with uncompressed.

    ``zero``: why a quantity of 0 cannot be compared.
    """
    found = []
    for about, runs in timing.cells():
        if why := unusable(runs, method):
            found.append(Comparison(**about, why=why))
            continue
        values = quantity(runs[method])
        if values.min() <= 0:
            found.append(Comparison(**about, why=zero))
            continue
        found.append(judged(timing.estimate(runs[method], quantity), len(values), bound, **about))
    return found


def largest_speedup(timing: Timing) -> list[Comparison]:
    """DLGS's largest speed-up over each topology, at the ratio of the paper's largest."""
    cells = [c for c in against_uncompressed(timing, "dlgs", PAPERS_SPEEDUP) if c.ratio == PAPERS_RATIO and c.n]
    if not cells:
        return [Comparison("", ratio=PAPERS_RATIO, why="no run of dlgs at this ratio")]
    best = {}
    for cell in sorted(cells, key=lambda cell: (cell.verdict != FAILS, cell.verdict == HOLDS, cell.value)):
        best[cell.topology, cell.workers] = cell
    return list(best.values())


def weakest(comparisons: list[list[Comparison]]) -> list[Comparison]:
    """One comparison for each cell, of several that must all hold: one that fails if there is one, otherwise one that
    is undecided, and among these the smallest."""
    found: dict[tuple, list[Comparison]] = {}
    for own in comparisons:
        for one in own:
            found.setdefault((one.model, one.topology, one.workers, one.ratio), []).append(one)
    worst = (FAILS, UNKNOWN, HOLDS)
    return [min(cell, key=lambda one: (worst.index(one.verdict), one.value)) for cell in found.values()]


def least_time(timing: Timing) -> list[Comparison]:
    """DLGS against each of the other methods, in every cell."""
    others = [between(timing, "dlgs", other, which=f"against {other}") for other in ("lags", "topk")]
    dense = [replace(one, which="against none") for one in against_uncompressed(timing, "dlgs")]
    return weakest([*others, dense])


def most_time(timing: Timing) -> list[Comparison]:
    """Every method against uncompressed, in every cell."""
    every = [[replace(c, which=name) for c in against_uncompressed(timing, name)] for name in ("topk", "lags", "dlgs")]
    return weakest(every)


def shorter_communication(timing: Timing) -> list[Comparison]:
    """What uncompressed waits for after backward, divided by what Top-K waits for, in every cell."""

    def waits(run: pd.DataFrame) -> pd.Series:
        own, dense = own_and_dense(run)
        return by_block(dense, "communication_s") / by_block(own, "communication_s").clip(lower=1e-6)

    return against_uncompressed(timing, "topk", quantity=waits, zero="uncompressed did not wait")


def faster_selection(timing: Timing) -> list[Comparison]:
    """The sparsification of LAGS and of Top-K divided by that of DLGS, in every cell."""
    others = [between(timing, other, "dlgs", sparsification, which=f"{other} by dlgs") for other in ("lags", "topk")]
    return weakest(others)


def waits(run: pd.DataFrame) -> pd.Series:
    """By block, the communication left after backward, against the computation of uncompressed in the same block."""
    own, dense = own_and_dense(run)
    return by_block(own, "communication_s").clip(lower=1e-9) / computation(dense)


def sent(run: pd.DataFrame) -> pd.Series:
    """Bytes that a worker hands over, by block."""
    return by_block(own_and_dense(run)[0], "sent_bytes")


def merged_more_on_vgg16(timing: Timing) -> list[Comparison]:
    """Buckets for each layer under DLGS's plan: those of VGG16 divided by those of another model."""
    shares: dict[tuple, dict[str, float]] = {}
    blocks = {}
    for about, runs in timing.cells():
        if "dlgs" in runs and pd.notna(runs["dlgs"]["num_buckets"].iloc[0]):
            layers = len(plugins.describe("models", about["model"])["layers"])
            cell = about["topology"], about["workers"], about["ratio"]
            shares.setdefault(cell, {})[about["model"]] = runs["dlgs"]["num_buckets"].iloc[0] / layers
            blocks[cell, about["model"]] = len(speedups(runs["dlgs"]))
    found = []
    for (topology, workers, ratio), own in shares.items():
        for other, share in own.items() if "vgg16" in own else ():
            if other != "vgg16":
                value, n = own["vgg16"] / share, blocks[(topology, workers, ratio), "vgg16"]
                verdict = HOLDS if value < 1 else FAILS
                about = {"topology": topology, "workers": workers, "ratio": ratio, "which": f"against {other}", "n": n}
                found.append(Comparison("vgg16", **about, value=value, verdict=verdict, why="the plans are known"))
    return found or [Comparison("", why="no plan of vgg16 and of another model over one topology")]


class Merging:
    """The study of planners, from its tidy table: iterations of one method under each plan, in turns."""

    def __init__(self, planners: pd.DataFrame):
        self._runs = [rows for _, rows in planners.groupby("run", sort=False)]
        self.batches = planners.groupby("model")["batch"].first().to_dict()

    def between(self, one: str, other: str, **bound) -> list[Comparison]:
        """The iteration under one plan divided by the iteration under another, in every run."""
        found = []
        for rows in self._runs:
            first = rows.iloc[0]
            about = {key: first[key] for key in ("model", "topology", "ratio")}
            if pd.notna(first["disturbed"]):
                found.append(Comparison(**about, why="disturbed"))
                continue
            above, below = (by_block(rows[rows["planner"] == name]) for name in (one, other))
            found.append(judged(repeatable(above / below), len(above), **about, **bound))
        return found


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
    by backward at most: the one shows that it is longer than computation, the other that it is shorter. Backward hides
    nothing of a single bucket.
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
        if (run["num_buckets"] == 1).all():  # sent after backward, which hides nothing
            found.append(least)
            continue
        hidden = replace(least, verdict=UNKNOWN, why="backward hides a part that is not known")
        found.append(most if most.verdict == FAILS else hidden if least.verdict == FAILS else least)
    return found


def final_points(accuracy: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, list[Comparison]]]:
    """Model, the last point of every run of the paper's methods, and an undecided comparison if the model trained too
    few epochs."""
    ours = accuracy[accuracy["variant"].isin(PAPERS)]
    last = ours[ours["step"] == ours.groupby("run")["step"].transform("max")]
    for model, rows in last.groupby("model", sort=False):
        short = captions.too_short(rows.iloc[0])
        yield model, rows, [Comparison(model, which=trained(rows), why=SHORT)] if short else []


def second_to_uncompressed(accuracy: pd.DataFrame) -> list[Comparison]:
    """Final training accuracies, by seed."""
    found = []
    for model, rows, undecided in final_points(accuracy):
        if undecided:
            found += undecided
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


def close_to_uncompressed(accuracy: pd.DataFrame) -> list[Comparison]:
    """Final training accuracies: uncompressed minus the method, by seed; it holds if the mean is at most ``CLOSE``.

    Fewer than ``LEAST_BLOCKS`` seeds decide nothing.
    """
    found = []
    for model, rows, undecided in final_points(accuracy):
        if undecided:
            found += undecided
            continue
        dense = rows[rows["variant"] == "none"].set_index("seed")["train_accuracy"]
        for (method, ratio), own in rows[rows["variant"] != "none"].groupby(["variant", "ratio"], sort=False):
            below = (dense - own.set_index("seed")["train_accuracy"]).dropna()
            about = {"model": model, "ratio": ratio, "which": method, "n": len(below)}
            if not len(below):
                found.append(Comparison(**about, why="no run of none with this seed"))
                continue
            value = float(below.mean())
            if len(below) < LEAST_BLOCKS:
                found.append(Comparison(**about, value=value, why=f"n is below {LEAST_BLOCKS}"))
                continue
            margin = quantile_of_t(len(below) - 1) * float(below.std()) / len(below) ** 0.5
            low, high = value - margin, value + margin
            verdict = HOLDS if high <= CLOSE else FAILS if low > CLOSE else UNKNOWN
            why = f"the interval of the mean against {CLOSE:g}"
            found.append(Comparison(**about, value=value, low=low, high=high, verdict=verdict, why=why))
    return found


def close_loss(accuracy: pd.DataFrame) -> list[Comparison]:
    """Final training losses: the method's divided by uncompressed's, by seed."""
    found = []
    for model, rows, undecided in final_points(accuracy):
        if undecided:
            found += undecided
            continue
        dense = rows[rows["variant"] == "none"].set_index("seed")["train_loss"]
        for (method, ratio), own in rows[rows["variant"] != "none"].groupby(["variant", "ratio"], sort=False):
            about = {"model": model, "ratio": ratio, "which": method}
            both = (own.set_index("seed")["train_loss"] / dense).dropna()
            if both.empty:
                found.append(Comparison(**about, why="no run of none with this seed"))
            else:
                found.append(judged(repeatable(both), len(both), CLOSE_LOSS, below=True, **about))
    return found


def near_at_the_start(accuracy: pd.DataFrame) -> list[Comparison]:
    """Training accuracy after about an epoch: the best compressor's minus the worst's, by seed.

    Fewer than ``LEAST_BLOCKS`` seeds decide nothing.
    """
    found = []
    ours = accuracy[accuracy["variant"].isin(PAPERS) & (accuracy["variant"] != "none")]
    for (model, ratio), rows in ours.groupby(["model", "ratio"], sort=False):
        distance = (rows["epoch"] - START).abs()
        early = rows[(distance <= START / 2) & (distance == distance.groupby(rows["run"]).transform("min"))]
        table = early.pivot_table(index="seed", columns="variant", values="train_accuracy").dropna()
        about = {"model": model, "ratio": ratio, "n": len(table)}
        if table.empty or table.shape[1] < len(PAPERS) - 1:
            found.append(Comparison(**about, why="a curve has no point near the first epoch, or a method is missing"))
            continue
        gaps = table.max(axis=1) - table.min(axis=1)
        value = float(gaps.mean())
        if len(gaps) < LEAST_BLOCKS:
            found.append(Comparison(**about, value=value, why=f"n is below {LEAST_BLOCKS}"))
            continue
        margin = quantile_of_t(len(gaps) - 1) * float(gaps.std()) / len(gaps) ** 0.5
        low, high = value - margin, value + margin
        verdict = HOLDS if high <= NEAR_START else FAILS if low > NEAR_START else UNKNOWN
        why = f"the interval of the mean against {NEAR_START:g}"
        found.append(Comparison(**about, value=value, low=low, high=high, verdict=verdict, why=why))
    return found


def steady_density(accuracy: pd.DataFrame) -> list[Comparison]:
    """The density of DLGS between two points of the curve, divided by the ratio: the one that is farthest from 1."""
    found = []
    for (model, ratio, _), rows in accuracy[accuracy["variant"] == "dlgs"].groupby(["model", "ratio", "seed"]):
        about = {"model": model, "ratio": ratio}
        if rows["step"].max() < STEPS_OF_DENSITY:
            found.append(Comparison(**about, which=trained(rows), why=SHORT))
            continue
        shares = rows["density"] / ratio
        value = max(shares, key=lambda share: max(share, 1 / share))
        holds = max(value, 1 / value) <= STEADY
        why = f"counted in {int(rows['step'].max())} steps, the bound is a factor of {STEADY:g}"
        found.append(Comparison(**about, value=value, n=len(rows), verdict=HOLDS if holds else FAILS, why=why))
    return found


def settles_and_jumps(accuracy: pd.DataFrame, value: str = "train_accuracy") -> list[Comparison]:
    """By how much training error or loss falls when the learning rate does, against how much it fell since epoch 40.

    Over the seeds of a model whose recipe is longer than 80 epochs, in the mean of the methods. The statement is about
    epochs of the whole recipe: a run whose schedule is scaled to fewer epochs cannot decide it.
    """
    found = []
    for model, rows in accuracy[accuracy["variant"].isin(PAPERS)].groupby("model", sort=False):
        first = rows.iloc[0]
        if first["epochs"] <= AFTER:
            continue
        if captions.too_short(first):
            found.append(Comparison(model, which=trained(rows), why=SHORT))
            continue
        if first["train_epochs"] < first["epochs"]:
            found.append(Comparison(model, which=trained(rows), why="the schedule was scaled to fewer epochs"))
            continue
        falls: dict[int, list[float]] = {}
        for (_, seed), points in rows.groupby(["run", "seed"], sort=False):
            if (errors := errors_at(points, value)) is not None:
                settled, before, after = errors
                falls.setdefault(seed, []).append(log((before / after) / (settled / before)))
        if not falls or len({len(one) for one in falls.values()}) > 1:
            why = f"a curve has no points near epochs {SETTLED}, {BEFORE} and {AFTER}"
            found.append(Comparison(model, why=why))
            continue
        means = [exp(sum(one) / len(one)) for one in falls.values()]
        found.append(judged(repeatable(means), len(means), model=model))
    return found


def errors_at(points: pd.DataFrame, value: str) -> list[float] | None:
    """Training errors or losses at the three epochs; None if the curve has no point within an epoch of one of them."""
    found = []
    for epoch in (SETTLED, BEFORE, AFTER):
        distance = (points["epoch"] - epoch).abs()
        if distance.min() > 1:
            return None
        own = points.loc[distance.idxmin(), value]
        found.append(max(FLOOR, 1 - own if value == "train_accuracy" else own))
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
        "LAGS's speed-up divided by Top-K's",
        lambda timing: between(timing, "lags", "topk"),
    ),
    ORDER[2]: (
        "DLGS's speed-up divided by LAGS's",
        lambda timing: between(timing, "dlgs", "lags"),
    ),
    "DLGS takes the least time of all methods": (
        "DLGS's speed-up divided by the other method's, the smallest of the three",
        least_time,
    ),
    "Uncompressed takes the most time of all methods": (
        "speed-up against uncompressed, the smallest of the three methods",
        most_time,
    ),
    f"At ratio {PAPERS_RATIO:g} DLGS's largest speed-up reaches {PAPERS_SPEEDUP:g}": (
        "the largest speed-up of DLGS over each topology",
        largest_speedup,
    ),
    ON_VGG16: (
        "DLGS's speed-up divided by the other method's",
        little_on_vgg16,
    ),
    "DLGS gains little on VGG16 because it merges more layers there": (
        "buckets per layer of VGG16 divided by those of another model",
        merged_more_on_vgg16,
    ),
    "LAGS hides communication behind backward, and so waits less than Top-K": (
        "Top-K's communication after backward divided by LAGS's",
        lambda timing: between(timing, "topk", "lags", waits),
    ),
    f"DLGS compresses markedly better than Top-K (read as: by {100 * (MARKEDLY - 1):.0f} %)": (
        "bytes that Top-K sends divided by those of DLGS",
        lambda timing: between(timing, "topk", "dlgs", sent, bound=MARKEDLY),
    ),
    "Uncompressed communication takes far longer than computation (read as: longer)": (
        "communication divided by computation; lower limit: the communication that remains after backward",
        communicating,
    ),
    "LAGS sparsifies longer than Top-K": (
        "LAGS's sparsification time divided by Top-K's",
        lambda timing: between(timing, "lags", "topk", sparsification),
    ),
    "Reused thresholds shorten the sparsification": (
        "sparsification time of LAGS and of Top-K divided by DLGS's, the smaller of the two",
        faster_selection,
    ),
    "Top-K shortens the communication": (
        "uncompressed's communication after backward divided by Top-K's",
        shorter_communication,
    ),
}
LEARNT = {
    "DLGS's training accuracy is second only to that of uncompressed": (
        "final training accuracy of one divided by the other's, of the same seed",
        second_to_uncompressed,
    ),
    f"The training accuracy is very close to uncompressed's (read as: within {CLOSE * 100:g} point)": (
        "final training accuracy of uncompressed minus the method's",
        close_to_uncompressed,
    ),
    f"The training loss is very close to uncompressed's (read as: within {100 * (CLOSE_LOSS - 1):.0f} %)": (
        "final training loss of the method divided by uncompressed's, of the same seed",
        close_loss,
    ),
    f"At the start all compressors differ little (read as: by {NEAR_START * 100:g} points after one epoch)": (
        "training accuracy of the best compressor minus the worst's",
        near_at_the_start,
    ),
    f"Thresholds change little, so reuse is harmless (read as: density within a factor {STEADY:g} of the ratio)": (
        "DLGS's density divided by the ratio, the value farthest from 1",
        steady_density,
    ),
    "Accuracy settles near epoch 40 and jumps at epoch 80": (
        f"fall of the training error from epoch {BEFORE} to {AFTER} divided by that from {SETTLED} to {BEFORE}",
        settles_and_jumps,
    ),
    "The loss settles near epoch 40 and falls at epoch 80": (
        f"fall of the training loss from epoch {BEFORE} to {AFTER} divided by that from {SETTLED} to {BEFORE}",
        lambda accuracy: settles_and_jumps(accuracy, "train_loss"),
    ),
}
MERGED = {
    "Merging layers shortens an iteration": (
        "iteration without merging divided by the iteration under Algorithm 2's plan",
        lambda merging: merging.between("layer", "paper"),
    ),
    f"Algorithm 2 finds the optimal merging (read as: within {100 * (OPTIMAL - 1):.0f} % of the exact plan)": (
        "iteration under Algorithm 2's plan divided by the iteration under the exact plan",
        lambda merging: merging.between("paper", "exact", bound=OPTIMAL, below=True),
    ),
}


def compare(timing: pd.DataFrame | None, accuracy: pd.DataFrame, planners: pd.DataFrame | None = None) -> pd.DataFrame:
    """One row per comparison: ``statement``, ``number`` (what is compared), and the fields of ``Comparison``.

    Nothing of what is timed without ``timing``, and nothing of merging without the tidy table of ``planners``.
    """
    found = [] if timing is None else [(TIMED, Timing(timing))]
    found += [] if planners is None else [(MERGED, Merging(planners))]
    found.append((LEARNT, accuracy))
    return pd.DataFrame(
        {"statement": statement, "number": number} | asdict(at_the_papers_batch(comparison, table))
        for statements, table in found
        for statement, (number, comparisons) in statements.items()
        for comparison in comparisons(table)
    )


def at_the_papers_batch(comparison: Comparison, table: Timing | Merging | pd.DataFrame) -> Comparison:
    """A comparison of times without its verdict, if the model was timed with another batch than the paper's: the
    smaller the batch, the more an exchange and a selection weigh."""
    if isinstance(table, pd.DataFrame) or comparison.verdict == UNKNOWN:
        return comparison
    batch, papers = table.batches.get(comparison.model), PAPERS_BATCH.get(comparison.model)
    if papers is None or batch == papers:
        return comparison
    return replace(comparison, verdict=UNKNOWN, why=f"timed at batch {batch:g}, the paper's is {papers}")


def shown(compared: pd.DataFrame, names: Names) -> pd.DataFrame:
    """One row per statement with its verdict, then one row per verdict and reason with the comparisons behind it."""
    rows = []
    for statement, every in compared.groupby("statement", sort=False):
        rows.append({"The paper states": statement, "Verdict": overall(every["verdict"]), "Measured": "", "Why": ""})
        order = every["verdict"].map([HOLDS, FAILS, UNKNOWN].index)
        every = every.loc[order.sort_values(kind="stable").index]
        for (verdict, why), own in every.groupby(["verdict", "why"], sort=False):
            words = "; ".join(figure(row, names) for row in own.to_dict("records"))
            measured = f"{own['number'].iloc[0]}. {words}"
            rows.append({"The paper states": "", "Verdict": verdict, "Measured": measured, "Why": named(why, names)})
    return pd.DataFrame(rows)


def overall(verdicts: pd.Series) -> str:
    """One verdict for all comparisons of a statement: "holds", or "mixed: holds in 6 of 8, does not hold in 2"."""
    counts = {verdict: int((verdicts == verdict).sum()) for verdict in (HOLDS, FAILS, UNKNOWN)}
    there = {verdict: n for verdict, n in counts.items() if n}
    if len(there) == 1:
        return next(iter(there))
    parts = [f"{verdict} in {n}" for verdict, n in there.items()]
    parts[0] += f" of {len(verdicts)}"
    return f"mixed: {', '.join(parts)}"


def figure(row: dict, names: Names) -> str:
    """Where, the number, its interval, and n."""
    parts = [names.model(row["model"])] if row["model"] else []
    parts += [TOPOLOGIES[row["topology"]].title] if row["topology"] != ALL_GATHER.name else []
    parts += [f"{row['workers']} workers"] if row["workers"] else []
    parts += [named(row["which"], names)] if row["which"] else []
    where = ", ".join(parts) + at_ratio(row["ratio"])
    if pd.isna(row["value"]):
        return where
    interval = "" if pd.isna(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{where}: {row['value']:.2f}{interval}, n = {row['n']}"


def named(words: str, names: Names) -> str:
    """The words with the titles of the paper's methods in the place of their names."""
    return " ".join(names.variant(word) if word in PAPERS else word for word in words.split(" "))
