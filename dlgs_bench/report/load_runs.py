"""Tidy tables from run folders: one row per observation, with columns that describe its run. No torch."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.spec import RunSpec
from dlgs_bench.stats import amortised, amortised_by

SPEC: tuple[str, ...] = ("model", "method", "variant", "ratio", "data", "stand_in", "batch", "epochs", "train_epochs")
SPEC += ("optimizer", "precision", "topology", "collective", "bucketing", "engine", "workers", "threads", "seed")
OPTIONS = ("selection", "refresh_every")  # options of methods; empty for a method without the option
# Of a testbed: the slowest link, the fastest link, the slowest measured rate, the latency and the measured round trip.
LINKS = ("rate_mbit", "fastest_mbit", "measured_mbit", "latency_ms", "round_trip_ms")
WHEN = ("date", "commit")
# The columns that describe the run of a row, in every tidy table. ``run`` is the name of its folder.
ABOUT = (
    "run",
    *SPEC,
    *OPTIONS,
    "num_buckets",
    "data_title",
    "train_samples",
    "machine",
    *WHEN,
    "network",
    *LINKS,
    "disturbed",
)

# Rows that agree in these columns measured the same thing.
ALIKE = ("model", "variant", "ratio", *OPTIONS, "topology", "collective", "workers", "rate_mbit", "latency_ms")


def read(paths: list) -> pd.DataFrame:
    """All rows of the runs' tables, each with the columns ``ABOUT`` of its run.

    The column ``variant`` of a run's table is called ``timed`` here ("none", or a planner), since ``variant`` is the
    variant of the run.
    """
    paths = [Path(path) for path in paths]
    tables = [pd.read_csv(path).rename(columns={"variant": "timed"}) for path in paths]
    return _with_metadata(tables, [run_metadata(path.parent) for path in paths])


def read_members(paths: list, against: tuple[str, ...] = ("none",)) -> pd.DataFrame:
    """Rows of runs in which several schemes take turns, as if each scheme had its own run.

    ``run``: the run's folder and the scheme's label. ``timed_in``: the folder, which is equal for schemes that took
    turns. ``timed``: the variant of a row, which is the scheme's variant or one of the variants ``against`` that took
    turns with it.

    If several runs measured the same, such as uncompressed, only the rows of the first run are kept. Only the fastest
    bucketing of a baseline in each run is kept.
    """
    tables, every_metadata = [], []
    for path in map(Path, paths):
        rows, members = pd.read_csv(path).rename(columns={"variant": "timed"}), RunSpec.in_folder(path.parent).members
        rows = rows[rows["timed"].isin(at_best(rows, members))]
        variants = rows["timed"].map({label: member.variant for label, member in members.items()})
        for label in rows["timed"].unique():
            own = (rows["timed"] == label) | variants.isin(against)
            metadata = run_metadata(path.parent, label)
            every_metadata.append(metadata | {"run": f"{metadata['run']}-{label}", "timed_in": path.parent.name})
            tables.append(rows[own].assign(timed=variants[own]))
    rows = _with_metadata(tables, every_metadata)
    first = rows.groupby(list(ALIKE), dropna=False)["run"].transform("first")
    rows = rows[rows["run"] == first]
    last = [*rows.columns.drop([*ABOUT, "timed_in"]), "timed_in"]
    return rows[[*ABOUT, *last]].reset_index(drop=True)


def _with_metadata(tables: list[pd.DataFrame], every_metadata: list[dict]) -> pd.DataFrame:
    """All rows of the tables, each with the columns that describe its table."""
    rows = pd.concat(tables, keys=range(len(tables)))
    metadata = pd.DataFrame(every_metadata).loc[rows.index.get_level_values(0)]
    return pd.concat([metadata.reset_index(drop=True), rows.reset_index(drop=True)], axis=1)


def at_best(rows: pd.DataFrame, members: dict[str, RunSpec]) -> list[str]:
    """The labels of a run, with only the fastest bucketing of each variant.

    ``rows``: iterations, with the label in the column ``timed``.
    """
    bucketings: dict[tuple, list[str]] = {}
    for label, member in members.items():
        bucketings.setdefault((member.variant, member.ratio), []).append(label)

    def seconds(label: str) -> float:
        return over_launches(by_block(rows[rows["timed"] == label]))

    return [labels[0] if len(labels) == 1 else min(labels, key=seconds) for labels in bucketings.values()]


def by_block(rows: pd.DataFrame, column: str = "iteration_s") -> pd.Series:
    """``column`` of one iteration, amortised over the phases of a cycle, indexed by launch and block.

    A run with a single launch may have no column for the launch.
    """
    numbers = [number for number in ("launch", "block") if number in rows]
    keys, phases = [rows[number].to_numpy() for number in numbers], pd.factorize(rows["phase"])[0]
    firsts, values = amortised_by(keys, rows[column], phases, rows["share"])
    return pd.Series(values, pd.MultiIndex.from_arrays([key[firsts] for key in keys], names=numbers))


def by_launch(values: pd.Series) -> pd.Series:
    """The median over the blocks of each launch, computed on logarithms, from values by block."""
    with np.errstate(divide="ignore"):  # a waiting time can be 0
        logs = np.log(values)
    if "launch" not in values.index.names:
        return np.exp(pd.Series([logs.median()]))
    return np.exp(logs.groupby(level="launch", dropna=False).median())


def over_launches(values: pd.Series) -> float:
    """The geometric mean over launches of the medians over blocks, from values by block, as in Table 2."""
    return float(np.exp(np.log(by_launch(values)).mean()))


def amortise(iterations: pd.DataFrame, column: str) -> float:
    """The median of ``column`` over each phase, weighted by the phase's share of a cycle."""
    return amortised(zip(iterations[column], iterations["phase"], iterations["share"], strict=True))


def read_points(paths: list) -> pd.DataFrame:
    """All points of accuracy runs, as ``read``, with columns about the steps since the previous point.

    ``density``, ``bits_per_entry``: means over these steps. ``squared_error``, ``squared_mean``: sums over the steps in
    which the aggregate was compared with the true mean; empty if there are none. ``test_perplexity``: exp(test loss) of
    models of text, empty for others.
    """
    steps_before = pd.concat([_steps_before_points(Path(path)) for path in paths], ignore_index=True)
    return pd.concat([read(paths), steps_before], axis=1)


def _steps_before_points(points: Path) -> pd.DataFrame:
    """One row per point of a run, with the columns that ``read_points`` adds."""
    rows, iterations = pd.read_csv(points), pd.read_csv(points.with_name("iterations.csv"))
    model = plugins.describe("models", run_metadata(points.parent)["model"])
    steps = iterations.groupby(rows["step"].searchsorted(iterations["step"]))
    sums = steps[["squared_error", "squared_mean"]].sum(min_count=1)
    bits = 8 * steps["sent_bytes"].mean() / model["parameters"]
    perplexity = np.exp(rows["test_loss"].to_numpy()) if model["metric"] == "perplexity" else np.nan
    return sums.assign(density=steps["density"].mean(), bits_per_entry=bits, test_perplexity=perplexity)


def last_points(points: pd.DataFrame, *others: str) -> pd.DataFrame:
    """The last point of each accuracy run; a run is identified by its name and the columns ``others``."""
    return points[points["step"] == points.groupby(["run", *others])["step"].transform("max")]


def with_uncompressed(points: pd.DataFrame, value: str, *keys: str) -> pd.DataFrame:
    """``points`` with the column ``dense``: ``value`` in the row of uncompressed with the same ``keys``, or NaN."""
    dense = points[points["variant"] == "none"].set_index(list(keys))[value].rename("dense")
    return points.join(dense, on=list(keys))


WHERE = ("machine", "network", "disturbed")  # seeds can differ in these
# The columns that are equal for all seeds of a run, and decide its numbers.
BUT_SEED = [key for key in ABOUT if key not in ("run", "seed", "selection", *WHEN, *LINKS, *WHERE)]


def over_seeds(last: pd.DataFrame, values: list[str], *others: str, joined: tuple[str, ...] = WHERE) -> pd.DataFrame:
    """One row for all seeds of a run: the mean, the smallest (``_low``) and the largest (``_high``) of ``values``.

    ``last``: the last points of the runs. ``others``: further columns that identify a row. ``joined``: columns of
    words, in which a row has the words of all its seeds.
    """
    groups = last.groupby([*BUT_SEED, *others], dropna=False, sort=False)
    words = {key: groups[key].agg(lambda own: " / ".join(own.dropna().unique()) or float("nan")) for key in joined}
    ends = {"": groups[values].mean(), "_low": groups[values].min(), "_high": groups[values].max()}
    table = pd.concat([part.add_suffix(end) for end, part in ends.items()], axis=1)
    return table.assign(**words, epochs_trained=groups["epoch"].mean(), seeds=groups.size()).reset_index()


def run_metadata(folder: Path, label: str = "") -> dict:
    """The columns ``ABOUT`` of the run in a folder, or of the scheme ``label`` in it."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    spec, provenance = RunSpec.from_dict(run["spec"]), run["provenance"]
    spec = spec.members[label] if label else spec
    fields = plugins.fields(spec.scheme.method)
    options = {key: spec.scheme.options.get(key, fields.get(key, {}).get("default")) for key in OPTIONS}
    metadata = {key: spec.flat()[key] for key in SPEC} | options
    metadata |= {
        "run": folder.name,
        "train_samples": run.get("train_samples"),
        "disturbed": run.get("disturbed") or None,
    }
    metadata["data_title"] = run.get("titles", {}).get("data", spec.training.data)
    metadata["num_buckets"] = _buckets(folder, label) if label else None
    metadata |= {key: provenance[key] for key in ("machine", "network")}
    metadata |= {"date": provenance.get("date", "")[:10] or None, "commit": provenance.get("commit")}
    metadata |= {key: provenance.get(key) for key in LINKS}
    if spec.kind != "accuracy":
        metadata["train_epochs"] = None  # only accuracy runs train; the spec of another run holds the default
    return {key: float("nan") if metadata[key] is None else metadata[key] for key in ABOUT}


def _buckets(folder: Path, label: str) -> int | None:
    """The number of buckets that a scheme of a timing run exchanges; None if the run has no table of them."""
    table = folder / "groups.csv"
    return int((pd.read_csv(table)["variant"] == label).sum()) if table.exists() else None
