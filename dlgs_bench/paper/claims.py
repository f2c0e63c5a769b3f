"""Compares the paper's statements with the measurements. No torch.

A statement has a set of comparisons, one for each measured model, ratio and topology. A comparison is a number with the
interval of a repeat, for example the time of LAGS divided by the time of DLGS. The statement holds there if the whole
interval is on its side of a bound. It does not hold if the whole interval is on the other side.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations, product
from math import ceil, exp, inf, log
from typing import Any

import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.paper import PAPERS_BATCH
from dlgs_bench.report import captions
from dlgs_bench.report.load_runs import by_block, by_launch, last_points, with_uncompressed
from dlgs_bench.report.names import Names, at_ratio, data_title
from dlgs_bench.report.summary import SETTING, Quantity, Repeats, in_turns, own_and_dense, speedups
from dlgs_bench.stats import LEAST_BLOCKS, Estimate, mean_of_seeds, quantile_of_t, repeatable, unpaired
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be told here"
PAPERS = ("none", "topk", "lags", "dlgs")  # the paper's methods; its statements do not concern other variants
LITTLE = 1.1  # we read "gains little" as a speed-up below this factor
PAPERS_SPEEDUP, PAPERS_RATIO = 1.99, 0.01
CLOSE = 1.0  # we read "very close" accuracies as one percentage point
CLOSE_LOSS = 1.05  # we read "very close" losses as a quotient below this factor
NEAR_START, START = 2.0, 1.0  # we read "differ little" at the start as two percentage points, after one epoch
MARKEDLY = 1.1  # we read "markedly better" as 10 %
OPTIMAL = 1.05  # we read "optimal" as within 5 % of the exact plan
STEADY = 2.0  # we read "thresholds differ little" as a density within this factor of the ratio
SETTLED, BEFORE, AFTER = 40, 79, 85  # epochs; the learning rate falls at 80
FLOOR = 1e-4  # of a training error
DISTURBED = "disturbed"
NO_RUN = "no run of"
SHORT, NO_TIME = "trained too few epochs", "took no time that a clock could show"
# Seconds. The launches of runs that wait less have medians from 0 to 0.95 ms and vary by more than their mean; the
# launches of all other runs of the reference set have medians above 1.4 ms.
LEAST_WAIT_S = 1e-3
LEAST_SHARE = 0.1  # of the computation: a limit for iterations in which LEAST_WAIT_S would be long
NO_WAIT = f"did not wait (less than {1e3 * LEAST_WAIT_S:g} ms)"
TOO_FEW = f"n is below {LEAST_BLOCKS}"
FEW_LAUNCHES = "too few launches for an interval"
STEPS_OF_DENSITY = 100  # a shorter training shows the density at the start only


@dataclass(frozen=True)
class Comparison:
    """One measured number for one statement. ``which``: the pair that is compared, if a statement has several."""

    model: str
    topology: str = ALL_GATHER.name
    workers: int = 0  # 0: the usual number over this topology
    ratio: float | None = None
    which: str = ""
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    n: int = 0
    verdict: str = UNKNOWN
    why: str = ""


def few(n: int) -> str:
    """The reason for a missing interval, from the number of blocks or seeds."""
    return TOO_FEW if n < LEAST_BLOCKS else FEW_LAUNCHES


def judge(estimate: Estimate, bound: float = 1.0, n: int = 0) -> tuple[str, str]:
    """The verdict on "above ``bound``", and the reason. ``n``: blocks or seeds."""
    if not estimate.enough:
        return UNKNOWN, few(n)
    if estimate.low > bound:
        return HOLDS, f"the interval lies above {bound:g}"
    if estimate.high < bound:
        return FAILS, f"the interval lies below {bound:g}"
    return UNKNOWN, f"the interval contains {bound:g}"


def judged(estimate: Estimate, n: int, bound: float = 1.0, below: bool = False, **metadata: Any) -> Comparison:
    """The comparison on "above ``bound``", or on "below ``bound``" if ``below``; ``n``: blocks or seeds."""
    verdict, why = judge(estimate, bound, n)
    if below:
        verdict = {HOLDS: FAILS, FAILS: HOLDS}.get(verdict, verdict)
    value, low, high = estimate.value, estimate.low, estimate.high
    return Comparison(**metadata, value=value, low=low, high=high, n=n, verdict=verdict, why=why)


def at_most(differences: pd.Series, bound: float, **metadata: Any) -> Comparison:
    """The comparison on "the mean is at most ``bound``", from one difference per seed.

    Fewer than ``LEAST_BLOCKS`` seeds decide nothing.
    """
    return _of_mean(differences, -inf, bound, f"{bound:g}", metadata)


def within(differences: pd.Series, bound: float, **metadata: Any) -> Comparison:
    """The comparison on "the mean is from ``-bound`` to ``bound``", from one difference with its sign per seed.

    Absolute values would not do: their mean is above zero even if two methods differ by noise alone.
    """
    return _of_mean(differences, -bound, bound, f"-{bound:g} to {bound:g}", metadata)


def _of_mean(differences: pd.Series, least: float, most: float, words: str, metadata: dict[str, Any]) -> Comparison:
    differences = differences.dropna()
    n, value = len(differences), float(differences.mean())
    if n < LEAST_BLOCKS:
        return Comparison(**metadata, value=value, n=n, why=TOO_FEW)
    margin = quantile_of_t(n - 1) * float(differences.std()) / n**0.5
    low, high = value - margin, value + margin
    verdict = UNKNOWN
    if least <= low and high <= most:
        verdict = HOLDS
    elif high < least or most < low:
        verdict = FAILS
    why = f"the interval of the mean against {words}"
    return Comparison(**metadata, value=value, low=low, high=high, n=n, verdict=verdict, why=why)


class Timing:
    """The timing runs of the paper's methods, from the tidy table of one configuration."""

    def __init__(self, timing: pd.DataFrame) -> None:
        rows = timing[timing["variant"].isin(PAPERS)]
        self._settings = dict(iter(rows.groupby(SETTING, sort=False)))
        self._usual = usual_workers(rows)
        self.batches = batches_of(rows)
        repeats = Repeats(timing)  # the spread of all methods, as in Table 2
        self.values, self.estimate, self.quotient = repeats.values, repeats.estimate, repeats.quotient

    @cached_property
    def cells(self) -> list[tuple[dict, dict[str, pd.DataFrame]]]:
        """The fields that identify a cell, and method -> iterations. A method without a ratio is in every cell."""
        cells = []
        for setting, rows in self._settings.items():
            for ratio in sorted(rows["ratio"].dropna().unique(), reverse=True):
                here = rows[rows["ratio"].isna() | (rows["ratio"] == ratio)]
                runs = dict(iter(here.groupby("variant", sort=False)))
                cells.append((self._metadata(*setting) | {"ratio": ratio}, runs))
        return cells

    def uncompressed(self) -> Iterator[tuple[dict, pd.DataFrame]]:
        """The fields that identify a setting, and the iterations of its run of uncompressed, if it has one."""
        for setting, rows in self._settings.items():
            own = rows[rows["variant"] == "none"]
            if len(own):
                yield self._metadata(*setting), own

    def _metadata(self, model: str, topology: str, workers: int) -> dict:
        """The fields that identify a setting. ``workers`` is 0 for the usual number over this topology."""
        usual = self._usual[topology] == workers
        return {"model": model, "topology": topology, "workers": 0 if usual else int(workers)}


def batches_of(rows: pd.DataFrame) -> dict[str, float]:
    """model -> samples per worker and step; empty without this column."""
    return rows.groupby("model")["batch"].first().to_dict() if "batch" in rows else {}


def usual_workers(timing: pd.DataFrame) -> dict[str, int]:
    """topology -> the smallest number of workers timed over it, which is the configuration's ``workers``."""
    return timing.groupby("topology")["workers"].min().to_dict()


def computation(rows: pd.DataFrame) -> pd.Series:
    """The seconds of forward and backward, by block."""
    return by_block(rows, "forward_s") + by_block(rows, "backward_s")


def sparsification(run: pd.DataFrame) -> pd.Series:
    """The sparsification divided by the computation of uncompressed, by block.

    Both are from the same block, so that a drift of the machine changes both.
    """
    own, dense = own_and_dense(run)
    return by_block(own, "sparsify_s") / computation(dense)


def wait(rows: pd.DataFrame) -> pd.Series:
    """The seconds of communication after backward, by block, each at least ``LEAST_WAIT_S``.

    All are 0 if the median of a launch is shorter than ``LEAST_WAIT_S``: the size of a quotient with it would be noise.
    """
    seconds = by_block(rows, "communication_s")
    return seconds.clip(lower=LEAST_WAIT_S) if by_launch(seconds).min() >= LEAST_WAIT_S else 0 * seconds


def waiting(run: pd.DataFrame) -> pd.Series:
    """The communication after backward divided by the computation of uncompressed in the same block, by block."""
    own, dense = own_and_dense(run)
    return wait(own) / computation(dense)


def least_waiting(run: pd.DataFrame) -> float:
    """More than ``waiting`` of a run that did not wait: ``LEAST_WAIT_S``, by the shortest computation of a launch."""
    return LEAST_WAIT_S / by_launch(computation(own_and_dense(run)[1])).min()


def least_communication(run: pd.DataFrame) -> pd.Series:
    """A lower bound of uncompressed's communication divided by its computation, by block: the part after backward.

    A part below ``LEAST_WAIT_S`` counts as ``LEAST_WAIT_S``, or as ``LEAST_SHARE`` of the computation if that is less.
    """
    _, dense = own_and_dense(run)
    seconds = computation(dense)
    least_s = (LEAST_SHARE * seconds).clip(upper=LEAST_WAIT_S)
    return by_block(dense, "communication_s").clip(lower=least_s) / seconds


def most_communication(run: pd.DataFrame) -> pd.Series:
    """An upper bound of uncompressed's communication divided by its computation, by block: with all of backward."""
    _, dense = own_and_dense(run)
    return least_communication(run) + by_block(dense, "backward_s") / computation(dense)


def unusable(runs: dict[str, pd.DataFrame], *methods: str) -> str:
    """Why these methods of a cell cannot be compared; an empty string if they can."""
    missing = [method for method in methods if method not in runs]
    if missing:
        return f"{NO_RUN} {' and '.join(missing)}"
    disturbed = [method for method in methods if runs[method]["disturbed"].notna().any()]
    return f"{DISTURBED}: {' and '.join(disturbed)}" if disturbed else ""


def between(
    timing: Timing,
    one: str,
    other: str,
    quantity: Quantity = speedups,
    which: str = "",
    **bound: Any,
) -> list[Comparison]:
    """``quantity`` of one method divided by ``quantity`` of another method, in every cell."""
    comparisons = []
    for metadata, runs in timing.cells:
        why = unusable(runs, one, other)
        if why:
            comparisons.append(Comparison(**metadata, which=which, why=why))
            continue
        blocks = {method: timing.values(runs[method], quantity) for method in (one, other)}
        zeros = [method for method, values in blocks.items() if values.min() <= 0]
        if zeros:
            comparisons.append(Comparison(**metadata, which=which, why=f"{' and '.join(zeros)} {NO_TIME}"))
            continue
        value = timing.quotient(runs[one], runs[other], quantity)
        comparisons.append(judged(value, min(map(len, blocks.values())), **bound, **metadata, which=which))
    return comparisons


def waits(timing: Timing, one: str, other: str) -> list[Comparison]:
    """The wait of one method divided by the wait of another, in every cell. Wait: the communication after backward.

    If one of them did not wait, its wait counts as ``LEAST_WAIT_S``. The quotient is then a bound: the true one is
    farther from 1. If neither waited, they cannot be compared.
    """
    comparisons = []
    for metadata, runs in timing.cells:
        if why := unusable(runs, one, other):
            comparisons.append(Comparison(**metadata, why=why))
            continue
        blocks = {method: timing.values(runs[method], waiting) for method in (one, other)}
        idle = [method for method, values in blocks.items() if values.min() <= 0]
        n = min(map(len, blocks.values()))
        if len(idle) == 2:
            comparisons.append(Comparison(**metadata, why=f"{one} and {other} {NO_WAIT}"))
        elif idle:
            least = least_waiting(runs[idle[0]])
            sides = [
                Estimate(least, least, least) if method in idle else timing.estimate(runs[method], waiting)
                for method in (one, other)
            ]
            bound = judged(unpaired(*sides), n, **metadata)
            comparisons.append(replace(bound, why=f"{bound.why}; {idle[0]} {NO_WAIT}, so it is a bound"))
        else:
            comparisons.append(judged(timing.quotient(runs[one], runs[other], waiting), n, **metadata))
    return comparisons


def against_uncompressed(timing: Timing, method: str, bound: float = 1.0) -> list[Comparison]:
    """The speed-up of a method in every cell."""
    comparisons = []
    for metadata, runs in timing.cells:
        if why := unusable(runs, method):
            comparisons.append(Comparison(**metadata, why=why))
            continue
        n = len(timing.values(runs[method], speedups))
        comparisons.append(judged(timing.estimate(runs[method], speedups), n, bound, **metadata))
    return comparisons


def largest_speedup(timing: Timing) -> list[Comparison]:
    """DLGS's largest speed-up over each topology, at the ratio of the paper's largest speed-up."""
    every = against_uncompressed(timing, "dlgs", PAPERS_SPEEDUP)
    cells = [
        at_the_papers_batch(cell, cell.model, timing.batches)
        for cell in every
        if cell.ratio == PAPERS_RATIO and (cell.n or cell.why.startswith(DISTURBED))
    ]
    if not cells:
        return [Comparison("", ratio=PAPERS_RATIO, why="no run of dlgs at this ratio")]
    best = {}
    # A cell that holds decides. Otherwise an undecided cell may have the largest speed-up.
    for cell in sorted(cells, key=lambda cell: (cell.verdict != FAILS, cell.verdict == HOLDS, cell.n > 0, cell.value)):
        best[cell.topology, cell.workers] = cell
    return list(best.values())


def weakest(comparisons: list[list[Comparison]]) -> list[Comparison]:
    """The worst of several comparisons that must all hold, for each cell.

    A comparison that fails is worse than an undecided comparison, which is worse than one that holds. Among equal
    verdicts, the smallest value is the worst.
    """
    cells: dict[tuple, list[Comparison]] = {}
    for own in comparisons:
        for one in own:
            cells.setdefault((one.model, one.topology, one.workers, one.ratio), []).append(one)
    worst = (FAILS, UNKNOWN, HOLDS)
    return [min(cell, key=lambda one: (worst.index(one.verdict), one.value)) for cell in cells.values()]


def least_time(timing: Timing) -> list[Comparison]:
    """DLGS against each of the other methods, in every cell."""
    others = [between(timing, "dlgs", other, which=f"against {other}") for other in ("lags", "topk")]
    dense = [replace(one, which="against none") for one in against_uncompressed(timing, "dlgs")]
    return weakest([*others, dense])


def most_time(timing: Timing) -> list[Comparison]:
    """Every method against uncompressed, in every cell."""
    every = [[replace(c, which=name) for c in against_uncompressed(timing, name)] for name in ("topk", "lags", "dlgs")]
    return weakest(every)


def faster_selection(timing: Timing) -> list[Comparison]:
    """The sparsification of LAGS and of Top-K divided by the sparsification of DLGS, in every cell."""
    return weakest(
        [between(timing, other, "dlgs", sparsification, which=f"{other} divided by dlgs") for other in ("lags", "topk")]
    )


def sent(run: pd.DataFrame) -> pd.Series:
    """The bytes that a worker sends in an iteration, by block."""
    return by_block(own_and_dense(run)[0], "sent_bytes")


def merged_more_on_vgg16(timing: Timing) -> list[Comparison]:
    """Buckets per layer under DLGS's plan: of VGG16, divided by another model's."""
    plans: dict[tuple, dict[str, tuple[float, int]]] = {}  # model -> numbers of buckets and of layers, by cell
    blocks = {}
    for metadata, runs in timing.cells:
        if "dlgs" in runs and pd.notna(runs["dlgs"]["num_buckets"].iloc[0]):
            layers = len(plugins.describe("models", metadata["model"])["layers"])
            cell = metadata["topology"], metadata["workers"], metadata["ratio"]
            plans.setdefault(cell, {})[metadata["model"]] = (runs["dlgs"]["num_buckets"].iloc[0], layers)
            blocks[cell, metadata["model"]] = len(timing.values(runs["dlgs"], speedups))
    comparisons = []
    for (topology, workers, ratio), own in plans.items():
        for other in own if "vgg16" in own else ():
            if other != "vgg16":
                (buckets, layers), (other_buckets, other_layers) = own["vgg16"], own[other]
                value, n = buckets / layers * other_layers / other_buckets, blocks[(topology, workers, ratio), "vgg16"]
                verdict, why = HOLDS if value < 1 else FAILS, "the plans are known"
                if (buckets, other_buckets) == (layers, other_layers):
                    verdict, why = UNKNOWN, "no layers are merged"
                elif buckets == other_buckets == 1:
                    verdict, why = UNKNOWN, "all layers of both are merged"
                metadata = {
                    "topology": topology,
                    "workers": workers,
                    "ratio": ratio,
                    "which": f"against {other}",
                    "n": n,
                }
                comparison = Comparison("vgg16", **metadata, value=value, verdict=verdict, why=why)
                comparisons.append(at_the_papers_batch(comparison, other, timing.batches))
    return comparisons or [Comparison("", why="no plan of vgg16 and of another model over one topology")]


class Merging:
    """The tidy table of the study of planners: iterations of DLGS under each plan, timed in turns."""

    def __init__(self, planners: pd.DataFrame) -> None:
        planners = planners[planners["variant"] == "dlgs"]
        self._runs = [rows for _, rows in planners.groupby("run", sort=False)]
        self._usual = usual_workers(planners)
        self.batches = batches_of(planners)

    def between(self, one: str, other: str, **bound: Any) -> list[Comparison]:
        """The iteration under one plan divided by the iteration under another plan, in every run."""
        comparisons = []
        for rows in self._runs:
            first = rows.iloc[0]
            metadata = {key: first[key] for key in ("model", "topology", "ratio")}
            if first["workers"] != self._usual[first["topology"]]:
                metadata["workers"] = int(first["workers"])
            if pd.notna(first["disturbed"]):
                comparisons.append(Comparison(**metadata, why=DISTURBED))
                continue
            # Planners with the same groups have the same iterations.
            seconds = {planner: by_block(own) for planner, own in rows.groupby("planner")}
            quotients = {planner: own / seconds[other] for planner, own in seconds.items()}
            same = [planner for planner, own in quotients.items() if (own == 1).all()]
            estimates = in_turns({planner: own for planner, own in quotients.items() if planner not in same})
            estimate = repeatable(quotients[one]) if one in same else estimates[one]
            comparisons.append(judged(estimate, len(seconds[one]), **metadata, **bound))
        return comparisons or [Comparison("", why=f"{NO_RUN} dlgs")]


def little_on_vgg16(timing: Timing) -> list[Comparison]:
    """DLGS's speed-up divided by the speed-up of each other compressor, on VGG16."""
    every = [
        comparison
        for other in ("lags", "topk")
        for comparison in between(timing, "dlgs", other, which=f"against {other}", bound=LITTLE, below=True)
    ]
    return [comparison for comparison in every if comparison.model == "vgg16"]


def communicating(timing: Timing) -> list[Comparison]:
    """The communication of uncompressed divided by its computation.

    Only the communication after backward is measured. The whole communication takes at least this time, and at most
    this time and backward. The lower bound can show that it is longer than computation, and the upper bound that it is
    shorter. A single bucket is sent after backward, so its communication is known.
    """
    comparisons = []
    for metadata, run in timing.uncompressed():
        why = unusable({"none": run}, "none")
        if why:
            comparisons.append(Comparison(**metadata, why=why))
            continue
        least, most = (
            judged(timing.estimate(run, bound), len(timing.values(run, bound)), which=which, **metadata)
            for which, bound in (("at least", least_communication), ("at most", most_communication))
        )
        if (run["num_buckets"] == 1).all():
            comparisons.append(least)
            continue
        if most.verdict == FAILS:
            comparisons.append(most)
        elif least.verdict == FAILS:
            comparisons.append(replace(least, verdict=UNKNOWN, why="backward hides a part that is not known"))
        else:
            comparisons.append(least)
    return comparisons


def of_final_points(
    accuracy: pd.DataFrame, compare_model: Callable[[str, pd.DataFrame], Iterator[Comparison]]
) -> list[Comparison]:
    """The comparisons of every model from the last points of the paper's methods.

    ``compare_model``: (model, last points of its runs) -> comparisons. A model that trained too few epochs has one
    undecided comparison instead.
    """
    comparisons: list[Comparison] = []
    for model, rows in last_points(accuracy[accuracy["variant"].isin(PAPERS)]).groupby("model", sort=False):
        if captions.too_short(rows.iloc[0]):
            comparisons.append(Comparison(model, which=epochs_text(rows), why=SHORT))
        else:
            comparisons += compare_model(model, rows)
    return comparisons


def second_to_uncompressed(accuracy: pd.DataFrame) -> list[Comparison]:
    """The quotients of final training accuracies, by seed."""

    def compare_model(model: str, rows: pd.DataFrame) -> Iterator[Comparison]:
        ratios = sorted(rows["ratio"].dropna().unique(), reverse=True)
        for ratio, (above, under) in product(ratios, [("dlgs", "lags"), ("dlgs", "topk"), ("none", "dlgs")]):
            metadata = {"model": model, "ratio": ratio, "which": f"{above} divided by {under}"}
            here = rows[rows["ratio"].isna() | (rows["ratio"] == ratio)]
            why = unusable(dict(iter(here.groupby("variant"))), above, under)
            if why:
                yield Comparison(**metadata, why=why)
                continue
            both = here.pivot_table(index="seed", columns="variant", values="train_accuracy")[[above, under]].dropna()
            yield judged(mean_of_seeds(both[above] / both[under]), len(both), **metadata)

    return of_final_points(accuracy, compare_model)


def paired_with_uncompressed(
    accuracy: pd.DataFrame, column: str, compare_pairs: Callable[..., Comparison]
) -> list[Comparison]:
    """A comparison of every method and ratio with uncompressed, at the end of the runs with the same seeds.

    ``compare_pairs``: the values of ``column`` of the method and of uncompressed, by seed -> comparison. It passes its
    keyword arguments on to the comparison.
    """

    def compare_model(model: str, rows: pd.DataFrame) -> Iterator[Comparison]:
        rows = with_uncompressed(rows, column, "seed")
        for (method, ratio), own in rows[rows["variant"] != "none"].groupby(["variant", "ratio"], sort=False):
            metadata = {"model": model, "ratio": ratio, "which": method}
            both = own.set_index("seed")[[column, "dense"]].dropna()
            if both.empty:
                yield Comparison(**metadata, why="no run of none with this seed")
            else:
                yield compare_pairs(both[column], both["dense"], **metadata)

    return of_final_points(accuracy, compare_model)


def close_to_uncompressed(accuracy: pd.DataFrame) -> list[Comparison]:
    """The final training accuracy of uncompressed minus the method's. It holds if the mean is at most ``CLOSE``."""
    return paired_with_uncompressed(
        accuracy, "train_accuracy", lambda own, dense, **metadata: at_most(100 * (dense - own), CLOSE, **metadata)
    )


def close_loss(accuracy: pd.DataFrame) -> list[Comparison]:
    """The final training loss of the method divided by uncompressed's, by seed."""
    return paired_with_uncompressed(
        accuracy,
        "train_loss",
        lambda own, dense, **metadata: judged(mean_of_seeds(own / dense), len(own), CLOSE_LOSS, below=True, **metadata),
    )


def near_at_the_start(accuracy: pd.DataFrame) -> list[Comparison]:
    """For each two compressors, the difference of their training accuracies after about an epoch, by seed."""
    comparisons = []
    compressors = accuracy[accuracy["variant"].isin(PAPERS) & (accuracy["variant"] != "none")]
    for (model, ratio), rows in compressors.groupby(["model", "ratio"], sort=False):
        distance = (rows["epoch"] - START).abs()
        early = rows[(distance <= START / 2) & (distance == distance.groupby(rows["run"]).transform("min"))]
        table = early.pivot_table(index="seed", columns="variant", values="train_accuracy").dropna()
        metadata = {"model": model, "ratio": ratio}
        if table.empty or table.shape[1] < len(PAPERS) - 1:
            why = "a curve has no point near the first epoch, or a method is missing"
            comparisons.append(Comparison(**metadata, n=len(table), why=why))
        else:
            for one, other in combinations(table.columns, 2):
                which = f"{one} minus {other}"
                comparisons.append(within(100 * (table[one] - table[other]), NEAR_START, **metadata, which=which))
    return comparisons


def steady_density(accuracy: pd.DataFrame) -> list[Comparison]:
    """The mean density of DLGS in an epoch divided by the ratio: the value that is farthest from 1.

    Densities are averaged over whole epochs, so the number of points of a curve does not change the verdict. A curve
    with fewer than one point in an epoch decides nothing.
    """
    comparisons = []
    for (model, ratio, _), rows in accuracy[accuracy["variant"] == "dlgs"].groupby(["model", "ratio", "seed"]):
        metadata = {"model": model, "ratio": ratio}
        if rows["step"].max() < STEPS_OF_DENSITY:
            comparisons.append(Comparison(**metadata, which=epochs_text(rows), why=SHORT))
            continue
        rows = rows.sort_values("step")
        steps, epochs = (rows[key].diff().fillna(rows[key]) for key in ("step", "epoch"))
        if epochs.max() > 1.01:
            comparisons.append(Comparison(**metadata, which=epochs_text(rows), why="fewer points than epochs"))
            continue
        epoch = (rows["epoch"] - 1e-3).map(ceil)
        quotients = (rows["density"] * steps).groupby(epoch).sum() / steps.groupby(epoch).sum() / ratio
        value = max(quotients, key=lambda quotient: max(quotient, 1 / quotient))
        holds = max(value, 1 / value) <= STEADY
        why = f"counted in {int(rows['step'].max())} steps, the bound is a factor of {STEADY:g}"
        verdict, n = HOLDS if holds else FAILS, len(quotients)
        comparisons.append(Comparison(**metadata, value=value, n=n, verdict=verdict, why=why))
    return comparisons


def settles_and_jumps(accuracy: pd.DataFrame, value: str = "train_accuracy") -> list[Comparison]:
    """The factor by which the training error or loss falls with the learning rate, divided by its fall since epoch 40.

    It is the geometric mean of the methods, over the seeds of a model whose recipe is longer than 80 epochs. The
    statement concerns epochs of the whole recipe. So runs whose schedule is scaled to fewer epochs cannot decide it.
    """
    comparisons = []
    for model, rows in accuracy[accuracy["variant"].isin(PAPERS)].groupby("model", sort=False):
        first = rows.iloc[0]
        if first["epochs"] <= AFTER:
            continue
        if captions.too_short(first):
            comparisons.append(Comparison(model, which=epochs_text(rows), why=SHORT))
            continue
        if first["train_epochs"] < first["epochs"]:
            comparisons.append(
                Comparison(model, which=epochs_text(rows), why="the schedule was scaled to fewer epochs")
            )
            continue
        falls: dict[int, list[float]] = {}
        for (_, seed), points in rows.groupby(["run", "seed"], sort=False):
            if (errors := errors_at(points, value)) is not None:
                plateau, before, after = errors
                falls.setdefault(seed, []).append(log((before / after) / (plateau / before)))
        if not falls or len({len(one) for one in falls.values()}) > 1:
            why = f"a curve has no points near epochs {SETTLED}, {BEFORE} and {AFTER}"
            comparisons.append(Comparison(model, why=why))
            continue
        means = [exp(sum(logs) / len(logs)) for logs in falls.values()]
        comparisons.append(judged(mean_of_seeds(means), len(means), model=model))
    return comparisons


def errors_at(points: pd.DataFrame, value: str) -> list[float] | None:
    """The training errors or losses at three epochs; None if the curve has no point within an epoch of one of them."""
    errors = []
    for epoch in (SETTLED, BEFORE, AFTER):
        distance = (points["epoch"] - epoch).abs()
        if distance.min() > 1:
            return None
        own = points.loc[distance.idxmin(), value]
        errors.append(max(FLOOR, 1 - own if value == "train_accuracy" else own))
    return errors


def resnet50_as_the_others(accuracy: pd.DataFrame) -> Iterator[Comparison]:
    """A method's distance to uncompressed on ResNet-50 minus its distance on another model, by seed.

    The distance is the final training accuracy of uncompressed minus the method's.
    """
    last = last_points(accuracy[accuracy["variant"].isin(PAPERS)])
    own = last[last["model"] == "resnet50"]
    if own.empty:
        yield Comparison("", why="ResNet-50 was not trained")
        return
    if captions.too_short(own.iloc[0]):
        yield Comparison("resnet50", which=epochs_text(own), why=SHORT)
        return
    last = last[[not captions.too_short(row) for row in last.to_dict("records")]]
    both = with_uncompressed(last, "train_accuracy", "model", "seed")
    methods = both[both["variant"] != "none"]
    distances = methods.assign(distance=methods["dense"] - methods["train_accuracy"]).pivot_table(
        index=["variant", "ratio", "seed"], columns="model", values="distance"
    )
    others = distances.columns.drop("resnet50", errors="ignore")
    if others.empty:
        yield Comparison("resnet50", why="no other model was trained long enough")
    for (method, ratio), rows in distances.groupby(level=["variant", "ratio"], sort=False):
        for other in others:
            metadata = {"model": "resnet50", "ratio": ratio, "which": f"{method} against {other}"}
            differences = 100 * (rows["resnet50"] - rows[other]).dropna() if "resnet50" in rows else []
            yield (
                within(differences, CLOSE, **metadata)
                if len(differences)
                else Comparison(**metadata, why="no runs of both")
            )


def final_density(accuracy: pd.DataFrame, method: str, misses: Callable[[float], bool]) -> Iterator[Comparison]:
    """The density of a method at the end of training divided by the ratio, the mean of the seeds.

    The statement that its threshold misses the ratio holds if ``misses`` of this number is true.
    """
    own = accuracy[accuracy["variant"] == method]
    if own.empty:
        yield Comparison("", why=f"no run of {method}")
        return
    for (model, ratio), rows in last_points(own).groupby(["model", "ratio"], sort=False):
        if captions.too_short(rows.iloc[0]):
            yield Comparison(model, ratio=ratio, which=epochs_text(rows), why=SHORT)
            continue
        value = float((rows["density"] / ratio).mean())
        verdict = HOLDS if misses(value) else FAILS
        yield Comparison(model, ratio=ratio, value=value, n=len(rows), verdict=verdict, why="entries were counted")


def epochs_text(rows: pd.DataFrame) -> str:
    """How much of its recipe a run trained, such as "2 of 140 epochs"."""
    first = rows.iloc[0]
    return f"{first['train_epochs']:g} of {first['epochs']:g} epochs"


ORDER = ("Top-K trains faster than uncompressed", "LAGS trains faster than Top-K", "DLGS trains faster than LAGS")
ON_VGG16 = "On VGG16 DLGS gains little over the other compressors (read as: less than 10 %)"
# statement -> (a description of the number, a function that returns the comparisons); from the timing runs
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
        "buckets per layer of VGG16 divided by the buckets per layer of another model",
        merged_more_on_vgg16,
    ),
    "LAGS hides communication behind backward, and so waits less than Top-K": (
        "Top-K's communication after backward divided by LAGS's",
        lambda timing: waits(timing, "topk", "lags"),
    ),
    f"DLGS compresses markedly better than Top-K (read as: by {100 * (MARKEDLY - 1):.0f} %)": (
        "bytes that Top-K sends divided by the bytes that DLGS sends",
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
        lambda timing: waits(timing, "none", "topk"),
    ),
}
# statement -> (description, function), from the accuracy runs
LEARNT = {
    "DLGS's training accuracy is second only to that of uncompressed": (
        "final training accuracy of one divided by the other's, of the same seed",
        second_to_uncompressed,
    ),
    f"The training accuracy is very close to uncompressed's (read as: within {CLOSE:g} point)": (
        "final training accuracy of uncompressed minus the method's, in percentage points",
        close_to_uncompressed,
    ),
    f"The training loss is very close to uncompressed's (read as: within {100 * (CLOSE_LOSS - 1):.0f} %)": (
        "final training loss of the method divided by uncompressed's, of the same seed",
        close_loss,
    ),
    f"At the start all compressors differ little (read as: by {NEAR_START:g} points after one epoch)": (
        "training accuracy of one compressor minus another's, in percentage points",
        near_at_the_start,
    ),
    f"Thresholds change little, so reuse is harmless (read as: density within a factor {STEADY:g} of the ratio)": (
        "DLGS's mean density in an epoch divided by the ratio, the value farthest from 1",
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
    f"ResNet-50 behaves as the other models (read as: distances to uncompressed within {CLOSE:g} point)": (
        "distance of a method's final training accuracy to uncompressed's, on ResNet-50 minus on another model, "
        "in percentage points",
        resnet50_as_the_others,
    ),
    f"Gaussian-K's threshold is too high late in training (read as: density below 1/{STEADY:g} of the ratio)": (
        "Gaussian-K's density at the end divided by the ratio",
        lambda accuracy: final_density(accuracy, "gaussiank", lambda quotient: quotient < 1 / STEADY),
    ),
    f"SIDCo's threshold misses low ratios (read as: density not within a factor {STEADY:g} of the ratio)": (
        "SIDCo's density at the end divided by the ratio",
        lambda accuracy: final_density(accuracy, "sidco", lambda quotient: max(quotient, 1 / quotient) > STEADY),
    ),
}
# statement -> (description, function), from the study of planners
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


def compare_statements(statements: dict, table: Timing | Merging | pd.DataFrame) -> list[dict]:
    """One row per comparison of ``statements``: ``statement``, ``number`` (a description), the comparison, ``batch``.

    ``statements``: some or all of ``TIMED``, ``MERGED`` or ``LEARNT``. ``table``: the measurements that they concern.
    """
    timed = not isinstance(table, pd.DataFrame)
    batches = table.batches if timed else batches_of(table)
    stand_ins = _stand_ins(table) if isinstance(table, pd.DataFrame) else {}
    rows = []
    for statement, (number, compared) in statements.items():
        for comparison in compared(table):
            own = at_the_papers_batch(comparison, comparison.model, batches) if timed else comparison
            if own.model in stand_ins:
                own = replace(own, which=", ".join(filter(None, (stand_ins[own.model], own.which))))
            batch = batches.get(comparison.model, float("nan"))
            rows.append({"statement": statement, "number": number} | asdict(own) | {"batch": batch})
    return rows


def _stand_ins(accuracy: pd.DataFrame) -> dict[str, str]:
    """model -> title of its data, for the models that were trained on a stand-in."""
    return {row["model"]: data_title(row) for row in accuracy[accuracy["stand_in"]].to_dict("records")}


def compare(timing: pd.DataFrame | None, accuracy: pd.DataFrame, planners: pd.DataFrame | None = None) -> pd.DataFrame:
    """The comparisons of all statements, as ``compare_statements``.

    Without ``timing`` there are no statements about time. Without the tidy table of ``planners`` there are no
    statements about merging.
    """
    rows = [] if timing is None else compare_statements(TIMED, Timing(timing))
    rows += [] if planners is None else compare_statements(MERGED, Merging(planners))
    return pd.DataFrame(rows + compare_statements(LEARNT, accuracy))


def with_kept(compared: pd.DataFrame, kept_runs: list[pd.DataFrame], models: Iterable[str]) -> pd.DataFrame:
    """The comparisons, and the comparisons of kept accuracy runs, which replace too short trainings of their models.

    ``kept_runs``: tidy tables, each compared alone, since their runs differ in precision and machine. ``models``: the
    models whose kept runs count.
    """
    if not kept_runs:
        return compared
    from_kept = pd.concat([compare(None, points) for points in kept_runs]).drop_duplicates()
    from_kept = from_kept[from_kept["model"].isin(list(models))]
    from_kept = from_kept.assign(
        which=from_kept["which"].map(lambda which: f"kept run: {which}" if which else "kept run")
    )
    replaced = (compared["why"] == SHORT) & compared["model"].isin(from_kept["model"])
    replaced |= (compared["model"] == "") & compared["statement"].isin(from_kept["statement"])  # no own run at all
    return pd.concat([compared[~replaced], from_kept], ignore_index=True)


def at_the_papers_batch(comparison: Comparison, model: str, batches: dict[str, float]) -> Comparison:
    """The comparison, undecided if ``model`` was timed at another batch than the paper's.

    The smaller the batch, the larger is the share of exchange and selection in an iteration.
    """
    if comparison.verdict == UNKNOWN or not (papers := other_batch(model, batches.get(model))):
        return comparison
    whose = f"{model} was timed" if model != comparison.model else "timed"
    return replace(comparison, verdict=UNKNOWN, why=f"{whose} at batch {batches[model]:g}, the paper's is {papers}")


def other_batch(model: str, batch: float | None) -> int | None:
    """The paper's batch for the model, if it is another; None if it is the same, or if one of them is not known."""
    papers = PAPERS_BATCH.get(model)
    return None if papers is None or pd.isna(batch) or batch == papers else papers


def shown(compared: pd.DataFrame, names: Names) -> pd.DataFrame:
    """One row per statement with its verdict, followed by one row per verdict and reason with its comparisons."""
    rows = []
    for statement, every in compared.groupby("statement", sort=False):
        rows.append({"The paper states": statement, "Verdict": overall(every["verdict"]), "Measured": "", "Why": ""})
        order = every["verdict"].map([HOLDS, FAILS, UNKNOWN].index)
        every = every.loc[order.sort_values(kind="stable").index]
        for (verdict, why), own in every.groupby(["verdict", "why"], sort=False):
            words = "; ".join(comparison_text(row, names) for row in own.to_dict("records"))
            measured = f"{own['number'].iloc[0]}. {words}"
            rows.append({"The paper states": "", "Verdict": verdict, "Measured": measured, "Why": named(why, names)})
    return pd.DataFrame(rows)


def in_short(compared: pd.DataFrame) -> dict[str, str]:
    """Statement -> one verdict for all its comparisons, in the order of the table."""
    return compared.groupby("statement", sort=False)["verdict"].agg(overall).to_dict()


def overall(verdicts: pd.Series) -> str:
    """One verdict for all comparisons of a statement: "holds", or "mixed: holds in 6 of 8, does not hold in 2"."""
    counts = {verdict: int((verdicts == verdict).sum()) for verdict in (HOLDS, FAILS, UNKNOWN)}
    counts = {verdict: n for verdict, n in counts.items() if n}
    if len(counts) == 1:
        return next(iter(counts))
    parts = [f"{verdict} in {n}" for verdict, n in counts.items()]
    parts[0] += f" of {len(verdicts)}"
    return f"mixed: {', '.join(parts)}"


def comparison_text(row: dict, names: Names) -> str:
    """A comparison as text: where it was made, the number, its interval, and n."""
    parts = [names.model(row["model"])] if row["model"] else []
    parts += [] if pd.isna(row["batch"]) else [f"batch {row['batch']:g}"]
    parts += [TOPOLOGIES[row["topology"]].title] if row["topology"] != ALL_GATHER.name else []
    parts += [f"{row['workers']} workers"] if row["workers"] else []
    parts += [named(row["which"], names)] if row["which"] else []
    where = ", ".join(parts) + at_ratio(row["ratio"])
    if pd.isna(row["value"]):
        return where
    return f"{where}: {Estimate(row['value'], row['low'], row['high']).text()}, n = {row['n']}"


def named(words: str, names: Names) -> str:
    """The words, with the names of the paper's methods and models replaced by their titles."""
    titles = {method: names.variant(method) for method in PAPERS} | {
        model: names.model(model) for model in PAPERS_BATCH
    }
    return " ".join(titles.get(word, word) for word in words.split(" "))
