"""Compares statements about OmniReduce, hybrid parallelism and alternating dense steps with their studies. No torch.

OmniReduce: Fei et al., SIGCOMM 2021. The others: hybrid parallelism with halving-doubling (a patent of Shanghai
Ocean University), and alternating sparse and dense communication (a patent of Alibaba). A number with an interval is
judged as in ``dlgs_bench.paper.claims``. A count is exact.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import product

import pandas as pd

from dlgs_bench.paper.claims import FAILS, HOLDS, UNKNOWN, few, judge, within
from dlgs_bench.stats import LEAST_BLOCKS, Estimate, mean_of_seeds, repeatable, unpaired

UNTESTED = "cannot be tested here"
OMNIREDUCE, HYBRID, ALTERNATING = "OmniReduce", "hybrid parallelism", "sparse and dense"
DENSE, CONVOLUTIONAL, SPARSE = 1.0, 0.99, 0.06  # share of non-zero blocks: all, nearly all, the published share
MUCH = 3.0  # bound of the speed-up from which this project expects OmniReduce to gain
MOST_STEPS = 10**6  # sparse steps before a dense step: with more, no step is dense
DENSE_SUMS = {
    "engine": "the engine's all-reduce",
    "ring": "a ring",
    "halving-doubling": "halving-doubling",
}
SHAPE = ("block", "fused", "aggregators", "in_flight")  # options of streams
# (density, published speed-up against NCCL's all-reduce with GPUDirect, and without; 8 workers, 100 Gb/s)
PUBLISHED = ((1.0, 17.2 / 15.6, 17.2 / 20.7), (0.1, 17.2 / 7.8, 17.2 / 17.2), (0.01, 17.2 / 3.1, 17.2 / 16.5))
LARGER = {"_100": "100 classes instead of 10", "_84": "images of 84 x 84 and 100 classes"}  # ending of a model -> words
BACKBONES = 2  # fewest backbone workers of data parallelism: a single worker sums no gradients
ALIKE = 0.01  # difference of training accuracies that are about equal
CHANCE = 0.12  # test accuracy: a run on 10 classes with at most this accuracy has not learnt
KEEPS = "Dense steps between sparse ones keep accuracy that sparsity loses (read as: at equal {equal})"
OLD = {"equal": "bytes", "lr": float("nan")}  # of tables of alternating steps without these columns
END_TO_END = "DeepLight 4.6, LSTM 3.0, NCF 2.5, BERT 1.9, VGG19 1.6, ResNet152 1.2"


def measured(
    statement: str, published: str, where: str, value: Estimate, n: int, disturbed: str | float | None = None
) -> dict:
    """The row of a statement that a measured value is above 1."""
    judged = judge(value, n=n) if n >= LEAST_BLOCKS else (UNKNOWN, few(n))
    verdict, why = (UNKNOWN, "disturbed") if isinstance(disturbed, str) else judged
    values = {"value": value.value, "low": value.low, "high": value.high, "n": n}
    return {"statement": statement, "published": published, "where": where} | values | {"verdict": verdict, "why": why}


def counted(statement: str, published: str, where: str, value: float, holds: bool, why: str) -> dict:
    """The row of a statement about a number that is exact."""
    verdict = HOLDS if holds else FAILS
    row = {"statement": statement, "published": published, "where": where}
    return row | {"value": value, "verdict": verdict, "why": why}


def untested(statement: str, published: str, why: str) -> dict:
    """The row of a statement that cannot be tested here."""
    return {"statement": statement, "published": published, "verdict": UNTESTED, "why": why}


def estimate(row: dict, column: str) -> Estimate:
    """A column of a row with its interval."""
    return Estimate(*(row[f"{column}{end}"] for end in ("", "_low", "_high")))


def either(*disturbed: object) -> str | None:
    """What disturbed the first of several runs that was disturbed; other runs have None or NaN."""
    return next((why for why in disturbed if isinstance(why, str)), None)


def omnireduce(sums: pd.DataFrame, training: pd.DataFrame, layers: pd.DataFrame) -> Iterator[dict]:
    """The rows about OmniReduce, from the studies ``sums`` and ``omnireduce``."""
    streamed = sums[(sums["way"] == "omnireduce") & (sums["positions"] == "random")]
    usual = streamed["block"].value_counts().idxmax()  # other block sizes are timed briefly
    as_many = (streamed["aggregators"] == streamed["workers"]) & (streamed["block"] == usual)
    rows = streamed[as_many].to_dict("records")
    deepest = [row for row in rows if row["in_flight"] == streamed["in_flight"].max()]
    for density, direct, staged in PUBLISHED:
        statement = f"A sum with {density * 100:.0f} % of the blocks not zero is faster than a library's all-reduce"
        published = f"{direct:.2f} times NCCL, {staged:.2f} without GPUDirect"
        for row in deepest:
            if row["density"] == density:
                way, dense = _fastest_dense(sums, row)
                where = f"{_processes(row)}, against {DENSE_SUMS[way]}, bound {row['bound']:.1f}"
                gain = unpaired(estimate(row, "speedup"), dense)
                yield measured(statement, published, where, gain, row["repeats"], row["disturbed"])
    statement = (
        f"Where the bytes allow {MUCH:g} times the speed of a ring, it is at least as fast (a goal of this project)"
    )
    for row in deepest:
        if row["bound"] >= MUCH:
            where = f"{_processes(row)}, density {row['density']:g}, bound {row['bound']:.1f}"
            yield measured(statement, "", where, estimate(row, "speedup"), row["repeats"], row["disturbed"])
    yield from _shapes(streamed)
    yield untested(
        "Its latency with RDMA and zero copy", "3.1 ms for 100 MB, 99 % zero", "TCP over shaped links, no GPU"
    )
    yield from _trained(training)
    yield from _zeros(layers, set(training.loc[training["method"] == "none", "model"]))


def _fastest_dense(sums: pd.DataFrame, row: dict) -> tuple[str, Estimate]:
    """The fastest dense sum of the run of ``row``, and its speed-up over a ring."""
    run = ["workers", "rate_mbit", "latency_ms", "entries", "dedicated", *SHAPE]
    alike = sums[(sums[run] == pd.Series(row)[run]).all(axis=1) & (sums["density"] == 1) & sums["way"].isin(DENSE_SUMS)]
    fastest = alike.loc[alike["speedup"].idxmax()].to_dict()
    return fastest["way"], estimate(fastest, "speedup")


def _processes(row: dict) -> str:
    """The workers and the kind of aggregators of a row of the study ``sums``, in words."""
    return f"{_workers(row)}, {'dedicated' if row['dedicated'] else 'shared'} aggregators"


def _workers(row: dict) -> str:
    """The workers of a row of the study ``sums`` and, if links have latency, their links, in words."""
    links = f" over {row['rate_mbit']:g} Mb/s and {row['latency_ms']:g} ms" if row["latency_ms"] else ""
    return f"{row['workers']} workers{links}"


def _shapes(streamed: pd.DataFrame) -> Iterator[dict]:
    """The rows that compare several aggregators with one, and the largest of each other option with the smallest.

    A tenth of the blocks is not zero. More aggregators or streams in flight are left out if a tensor is so small that
    it has no more streams with them.
    """
    rows = streamed[streamed["density"] == PUBLISHED[1][0]]
    questions = {
        "aggregators": "As many aggregators as workers take away the bottleneck of one",
        "in_flight": "More streams in flight pay",
        "fused": "Several blocks in a message pay",
        "block": "Larger blocks use the links better (read as: at an equal part of blocks that are not zero)",
    }
    for column, statement in questions.items():
        alike = [name for name in ("workers", "latency_ms", "dedicated", *SHAPE) if name != column]
        for case, own in rows.groupby(alike):
            least, most = (own.sort_values(column).iloc[end].to_dict() for end in (0, -1))
            no_more = column in ("aggregators", "in_flight") and least["streams"] == most["streams"]
            if least[column] < most[column] and not no_more:
                shape = [(name, value) for name, value in zip(alike, case, strict=True) if name in SHAPE]
                metadata = ", ".join(
                    [_processes(most), *(f"{name.replace('_', ' ')} {value}" for name, value in shape)]
                )
                where = f"{metadata}: {most[column]} against {least[column]}"
                gain = unpaired(estimate(most, "speedup"), estimate(least, "speedup"))
                n, disturbed = min(least["repeats"], most["repeats"]), either(least["disturbed"], most["disturbed"])
                yield measured(statement, "", where, gain, n, disturbed)


def _trained(training: pd.DataFrame) -> Iterator[dict]:
    """The rows about iterations of training over OmniReduce."""
    statement = "A model whose gradient has blocks of zeros by itself trains faster than over a dense all-reduce"
    over_omnireduce = training[training["way"] == "omnireduce"].to_dict("records")
    for row in over_omnireduce:
        if row["method"] == "none":
            where = f"{row['model']}, {row['workers']} workers, iteration against a ring, bound {row['bound']:.1f}"
            yield measured(statement, END_TO_END, where, estimate(row, "gain"), row["blocks"], row["disturbed"])
    statement = "So does a model with block-wise Top-K"
    for row in over_omnireduce:
        if row["method"] != "none":
            metadata = f"{row['model']}, {row['ratio']:g} of the blocks, {row['workers']} workers"
            where = f"{metadata}, iteration against a ring, bound {row['bound']:.1f}"
            yield measured(statement, "", where, estimate(row, "gain"), row["blocks"], row["disturbed"])


def _zeros(layers: pd.DataFrame, natural: set[str]) -> Iterator[dict]:
    """The rows about blocks of zeros in gradients; ``natural``: models that have them without a sparsifier."""
    for model, rows in layers.groupby("model", sort=False):
        density = (rows["density"] * rows["entries"]).sum() / rows["entries"].sum()
        if model in natural:
            statement, published = "An embedding's gradient has more than 94 % blocks of zeros", "DeepLight, LSTM"
            yield counted(statement, published, model, density, density < SPARSE, "part of the blocks that is not zero")
        else:
            statement = "A convolutional net's gradient has no blocks of zeros without a sparsifier"
            yield counted(statement, "", model, density, density > CONVOLUTIONAL, "part of the blocks that is not zero")


def halving_doubling(sums: pd.DataFrame) -> Iterator[dict]:
    """The rows that compare halving-doubling with a ring: messages, bytes and time of full blocks in ``sums``."""
    full = sums[(sums["density"] == DENSE) & (sums["positions"] == "random")]
    for (workers, _), rows in full.groupby(["workers", "latency_ms"]):
        ways = {way: own.iloc[0].to_dict() for way, own in rows.groupby("way")}
        if "halving-doubling" not in ways:
            continue
        own, ring, steps = ways["halving-doubling"], ways["ring"], 2 * int(math.log2(workers))
        where, statement = _workers(own), "Halving-doubling sends 2 log2 n messages, and the bytes of a ring"
        same = abs(own["bytes"] - ring["bytes"]) <= 4 * 2 * workers  # the entries cannot always be divided evenly
        holds = bool(own["messages"] == steps and same)
        why = f"{own['messages']:g} messages, ring {ring['messages']:g}; {own['bytes']:g} bytes, ring {ring['bytes']:g}"
        yield counted(statement, f"{steps}", where, own["messages"], holds, why)
        statement = "Halving-doubling is faster than a ring"
        every = rows[rows["way"] == "halving-doubling"]
        quiet = every[every["disturbed"].isna()]
        if len(quiet) < LEAST_BLOCKS:
            first = (quiet if len(quiet) else every).iloc[0].to_dict()
            yield measured(statement, "", where, estimate(first, "speedup"), first["repeats"], first["disturbed"])
        else:  # it was timed again next to each way of OmniReduce
            yield measured(statement, "", where, repeatable(quiet["speedup"]), len(quiet))


def predictions(table: pd.DataFrame) -> dict[str, str]:
    """model -> the predicted gain against a ring for the most workers, in words, if there is a prediction."""
    words = {}
    for model, rows in table[table["repeats"] == 0].groupby("model"):
        workers = rows["workers"].max()
        seconds = rows[rows["workers"] == workers].set_index("way")["predicted_s"]
        if {"hybrid", "ring"} <= set(seconds.index):
            gain = seconds["ring"] / seconds["hybrid"]
            words[model] = f"the time model predicts {gain:.2f} for {workers} workers on dedicated nodes"
    return words


def hybrid(table: pd.DataFrame, learning: pd.DataFrame) -> Iterator[dict]:
    """The rows about hybrid parallelism, from the two tables of the study ``hybrid``.

    Verdicts are from measured rows. Predictions are a part of the reasons.
    """
    measured_rows = table[table["repeats"] > 0]
    gains = _gains(measured_rows)
    parallel = {workers for _, workers in gains if workers // 2 >= BACKBONES}
    yield from _relief(measured_rows)
    predicted = predictions(table)
    yield from _faster(gains, parallel, predicted)
    yield from _larger(gains)
    yield from _decay(gains, parallel, predicted)
    yield from _learning(learning)


def _learning(table: pd.DataFrame) -> Iterator[dict]:
    """Per model, the last training accuracy minus data parallelism's, by seed; three seeds are needed to decide."""
    for model, rows in table.groupby("model", sort=False):
        last = rows[rows["step"] == rows["step"].max()].pivot(index="seed", columns="way", values="train_accuracy")
        judged = within(last["hybrid"] - last["data-parallel"], ALIKE, model=model)
        where = f"{model}, {rows['step'].max()} steps, training accuracy minus data-parallel's"
        row = {"statement": "Its accuracy is about as high as with the other methods", "published": "", "where": where}
        why = f"{judged.why}; both have the same samples and the same weights at the start"
        yield row | {key: getattr(judged, key) for key in ("value", "low", "high", "n", "verdict")} | {"why": why}


# (model, workers) -> (speed-up of hybrid parallelism against a ring, n, what disturbed one of the two runs)
Gains = dict[tuple[str, int], tuple[Estimate, int, str | None]]


def _ways(table: pd.DataFrame) -> Iterator[tuple[str, int, dict[str, dict]]]:
    """(model, workers, way -> row) where a ring was measured; the study leaves it out if it would take too long."""
    for (model, workers), rows in table.groupby(["model", "workers"], sort=False):
        ways = {row["way"]: row for row in rows.to_dict("records")}
        if "ring" in ways:
            yield model, workers, ways


def _gains(table: pd.DataFrame) -> Gains:
    gains = {}
    for model, workers, ways in _ways(table):
        own, ring = ways["hybrid"], ways["ring"]
        n, disturbed = min(own["repeats"], ring["repeats"]), either(own["disturbed"], ring["disturbed"])
        gains[model, workers] = unpaired(estimate(ring, "iteration_s"), estimate(own, "iteration_s")), n, disturbed
    return gains


def _relief(table: pd.DataFrame) -> Iterator[dict]:
    why = "bytes of the process that sends the most, divided by the bytes of the server"
    for model, workers, ways in _ways(table):
        served = next((row for row in ways.values() if row["sender"] == "server"), None)
        if served:
            part = ways["hybrid"]["bytes"] / served["bytes"]
            where = f"{model}, {workers} workers"
            yield counted("It relieves the parameter server", "", where, part, part < 1, why)


def _faster(gains: Gains, parallel: set[int], predicted: dict[str, str]) -> Iterator[dict]:
    for (model, workers), (gain, n, disturbed) in gains.items():
        where = f"{model}, {workers} workers, against a ring"
        row = measured("It trains faster than data parallelism", "", where, gain, n, disturbed)
        if workers not in parallel:
            row |= {"verdict": UNKNOWN, "why": "one worker has the whole backbone"}
        yield row | {"why": "; ".join(filter(None, (row["why"], predicted.get(model))))}


def _larger(gains: Gains) -> Iterator[dict]:
    for ((model, workers), (gain, n, disturbed)), (ending, larger) in product(gains.items(), LARGER.items()):
        if (many := gains.get((f"{model}{ending}", workers))) is not None:
            where = f"{workers} workers: gain of {model}{ending} divided by the gain of {model}"
            quotient = unpaired(many[0], gain)
            statement = f"The gain is larger with {larger}"
            yield measured(statement, "", where, quotient, min(n, many[1]), either(disturbed, many[2]))


def _decay(gains: Gains, parallel: set[int], predicted: dict[str, str]) -> Iterator[dict]:
    """Per model, the gain with the most workers divided by the gain with the fewest.

    If several numbers of workers have a data-parallel backbone, only these count.
    """
    for model in dict.fromkeys(model for model, _ in gains):
        numbers = {workers for of, workers in gains if of == model}
        if len(numbers & parallel) > 1:
            numbers &= parallel
        fewest, most = min(numbers), max(numbers)
        if fewest == most:
            continue
        (small, n, first), (large, m, second) = gains[model, fewest], gains[model, most]
        where = f"{model}: gain with {most} workers divided by the gain with {fewest}"
        statement, quotient = "Its speed-up decays less as nodes are added", unpaired(large, small)
        row = measured(statement, "", where, quotient, min(n, m), either(first, second))
        if fewest not in parallel:
            row |= {"verdict": UNKNOWN, "why": f"with {fewest} workers one has the whole backbone"}
        yield row | {"why": "; ".join(filter(None, (row["why"], predicted.get(model))))}


def never_dense(sparse_steps: int) -> bool:
    """Whether a run with ``sparse_steps`` before each dense step has no dense step."""
    return sparse_steps > MOST_STEPS


def comparable(points: pd.DataFrame) -> pd.DataFrame:
    """The points with the columns ``equal`` and ``lr``, which old tables at equal bytes do not have."""
    return points.assign(**{key: value for key, value in OLD.items() if key not in points})


def at_best_rate(points: pd.DataFrame) -> pd.DataFrame:
    """The points of each T's runs with the learning rate of the lowest training loss at the end, the mean of seeds."""
    last = points[points["step"] == points["train_steps"]]
    losses = last.groupby(["equal", "sparse_steps", "lr"], dropna=False)["train_loss"].mean()
    best = losses[losses == losses.groupby(level=["equal", "sparse_steps"]).transform("min")].reset_index()
    return points.merge(best[["equal", "sparse_steps", "lr"]], on=["equal", "sparse_steps", "lr"])


def alternating(points: pd.DataFrame) -> Iterator[dict]:
    """The rows about alternating sparse and dense steps, from the study ``sparse_dense``.

    Test accuracies are compared at equal bytes and at equal steps, by seed, each T at its best learning rate.
    """
    points = at_best_rate(comparable(points))
    last = points[points["step"] == points["train_steps"]]
    for equal, rows in last.groupby("equal"):
        by_seed = rows.pivot_table(index="seed", columns="sparse_steps", values="test_accuracy").dropna()
        epochs = rows.groupby("sparse_steps")["epoch"].first()
        never = max(by_seed)
        if not never_dense(never):
            continue
        for kind in (kind for kind in by_seed if kind and not never_dense(kind)):
            where = f"T = {kind} by never dense, {epochs[kind]:.2g} and {epochs[never]:.2g} epochs"
            quotient = mean_of_seeds(by_seed[kind] / by_seed[never])
            row = measured(KEEPS.format(equal=equal), "", where, quotient, len(by_seed))
            if by_seed[kind].mean() <= CHANCE:
                row |= {"verdict": UNKNOWN, "why": "it ended at chance, so it did not train"}
            yield row


def compare(
    sums: pd.DataFrame,
    training: pd.DataFrame,
    layers: pd.DataFrame,
    points: pd.DataFrame | None = None,
    hybrids: pd.DataFrame | None = None,
    learning: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row per comparison, from the tables of the studies.

    ``points`` is None if the study ``sparse_dense`` did not run. ``hybrids`` and ``learning`` are None if the study
    ``hybrid`` did not run.
    """
    sources: list[tuple[str, Iterable[dict]]]
    sources = [(OMNIREDUCE, omnireduce(sums, training, layers)), (HYBRID, halving_doubling(sums))]
    sources += [(HYBRID, hybrid(hybrids, learning))] if hybrids is not None and learning is not None else []
    none = untested(KEEPS.format(equal="bytes"), "", "no methods/sparse_dense.py here")
    sources.append((ALTERNATING, [none] if points is None else alternating(points)))
    columns = ["statement", "published", "where", "value", "low", "high", "n", "verdict", "why"]
    return pd.DataFrame(
        [{"system": system} | row for system, rows in sources for row in rows], columns=["system", *columns]
    )


def shown(compared: pd.DataFrame) -> pd.DataFrame:
    """One row per statement and verdict, with all its comparisons."""
    table = []
    for (system, statement, verdict), rows in compared.groupby(["system", "statement", "verdict"], sort=False):
        table.append(
            {
                "System": system,
                "It is stated": statement,
                "Published": rows["published"].fillna("").iloc[0],
                "Measured": "; ".join(filter(None, map(_words, rows.to_dict("records")))),
                "Verdict": verdict,
                "Why": "; ".join(dict.fromkeys(rows["why"])),
            }
        )
    return pd.DataFrame(table)


def _words(row: dict) -> str:
    """A comparison as text: where it was made, the value, its interval, and n."""
    if pd.isna(row["value"]):
        return ""
    interval = "" if pd.isna(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}], n = {row['n']:g}"
    return f"{row['where']}: {row['value']:.3g}{interval}"
