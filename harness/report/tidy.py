"""Tidy tables from run folders: one row per observation, each with what its run was. No torch."""

import json
from pathlib import Path

import pandas as pd

from harness import plugins
from harness.spec import RunSpec

SPEC = ("model", "method", "variant", "ratio", "data", "stand_in", "batch", "epochs", "train_epochs")
SPEC += ("precision", "topology", "collective", "engine", "workers", "threads", "seed")
OPTIONS = ("selection", "refresh_every")  # of methods, with their defaults; empty for those without
# Of a testbed: its slowest link, its fastest, the slowest measured; from host to host, there and back measured.
LINKS = ("rate_mbit", "fastest_mbit", "measured_mbit", "latency_ms", "round_trip_ms")
# What a row says of its run, in every tidy table. ``run`` is the name of its folder.
ABOUT = ("run", *SPEC, *OPTIONS, "data_title", "train_samples", "machine", "network", *LINKS, "disturbed")

# Rows that agree in these measured the same thing.
ALIKE = ("model", "variant", "ratio", *OPTIONS, "topology", "collective", "workers", "rate_mbit", "latency_ms")


def read(paths: list) -> pd.DataFrame:
    """All rows of the runs' tables, each with the columns ``ABOUT`` its run.

    What a run timed in turns is called ``timed`` here ("none", or a planner), since ``variant`` is the run's.
    """
    paths = [Path(path) for path in paths]
    rows = pd.concat([pd.read_csv(path) for path in paths], keys=range(len(paths))).rename(columns={"variant": "timed"})
    about = pd.DataFrame([about_run(path.parent) for path in paths], columns=list(ABOUT))
    about = about.loc[rows.index.get_level_values(0)]
    return pd.concat([about.reset_index(drop=True), rows.reset_index(drop=True)], axis=1)


def read_members(paths: list, against: tuple[str, ...] = ("none",)) -> pd.DataFrame:
    """Rows of runs in which several schemes take turns, as if each scheme had a run of its own.

    ``run``: the run's folder and the scheme's label; ``timed_in``: the folder, which schemes that took turns share.
    ``timed``: the variant of a row: the scheme's own, or one of the variants ``against``, which took turns with it.
    What several runs measured alike, such as uncompressed, is the first run's alone.
    """
    found = []
    for path in map(Path, paths):
        rows, members = pd.read_csv(path).rename(columns={"variant": "timed"}), RunSpec.in_folder(path.parent).members
        variants = rows["timed"].map({label: member.variant for label, member in members.items()})
        for label in rows["timed"].unique():
            own = (rows["timed"] == label) | variants.isin(against)
            about = about_run(path.parent, label)
            about |= {"run": f"{about['run']}-{label}", "timed_in": path.parent.name}
            found.append(rows[own].assign(timed=variants[own], **about))
    rows = pd.concat(found, ignore_index=True)
    first = rows.groupby(list(ALIKE), dropna=False)["run"].transform("first")
    rows = rows[rows["run"] == first]
    return rows[[*ABOUT, *rows.columns.drop(list(ABOUT))]].reset_index(drop=True)


def read_points(paths: list) -> pd.DataFrame:
    """All points of accuracy runs, as ``read``, each with what the steps since the point before sent and lost.

    ``density``, ``bits_per_entry``: means over these steps; ``squared_error``, ``squared_mean``: sums over those of
    them in which the aggregate was held against the true mean, empty where there are none.
    """
    stretches = pd.concat([_stretches(Path(path)) for path in paths], ignore_index=True)
    return pd.concat([read(paths), stretches], axis=1)


def _stretches(points: Path) -> pd.DataFrame:
    ends = pd.read_csv(points)["step"]
    iterations = pd.read_csv(points.with_name("iterations.csv"))
    entries = plugins.describe("models", about_run(points.parent)["model"])["parameters"]
    stretches = iterations.groupby(ends.searchsorted(iterations["step"]))
    sums = stretches[["squared_error", "squared_mean"]].sum(min_count=1)
    return sums.assign(density=stretches["density"].mean(), bits_per_entry=8 * stretches["sent_bytes"].mean() / entries)


def about_run(folder: Path, label: str = "") -> dict:
    """The columns ``ABOUT`` the run in a folder, or about one of the schemes that took turns in it."""
    run = json.loads((folder / "run.json").read_text())
    spec, provenance = RunSpec.from_dict(run["spec"]), run["provenance"]
    spec = spec.members[label] if label else spec
    fields = plugins.fields(spec.scheme.method)
    options = {key: spec.scheme.options.get(key, fields.get(key, {}).get("default")) for key in OPTIONS}
    about = {key: spec.flat()[key] for key in SPEC} | options
    about |= {"run": folder.name, "train_samples": run.get("train_samples"), "disturbed": run.get("disturbed") or None}
    about["data_title"] = run.get("titles", {}).get("data", spec.training.data)
    about |= {key: provenance[key] for key in ("machine", "network")}
    about |= {key: provenance.get(key) for key in LINKS}
    return {key: float("nan") if about[key] is None else about[key] for key in ABOUT}
