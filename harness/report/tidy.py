"""Tidy tables from run folders: one row per observation, each with what its run was. No torch."""

import json
from dataclasses import replace
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


def read(paths: list) -> pd.DataFrame:
    """All rows of the runs' tables, each with the columns ``ABOUT`` its run.

    A timing run times several variants: its rows' own ``variant`` is called ``timed`` here ("none", or the run's
    variant, or a planner), since ``variant`` is the run's.
    """
    paths = [Path(path) for path in paths]
    rows = pd.concat([pd.read_csv(path) for path in paths], keys=range(len(paths))).rename(columns={"variant": "timed"})
    about = pd.DataFrame([about_run(path.parent) for path in paths], columns=list(ABOUT))
    about = about.loc[rows.index.get_level_values(0)]
    return pd.concat([about.reset_index(drop=True), rows.reset_index(drop=True)], axis=1)


def read_each(paths: list, against: list[str]) -> pd.DataFrame:
    """Rows of timing runs as if every variant in them had a run of its own, named after run and variant, in which it
    took turns with uncompressed and the variants ``against`` alone."""
    found = []
    for path in map(Path, paths):
        rows = pd.read_csv(path).rename(columns={"variant": "timed"})
        for variant in rows["timed"].unique():
            about = about_run(path.parent, variant)
            own = rows[rows["timed"].isin([variant, "none", *against])]
            found.append(own.assign(**about | {"run": f"{about['run']}-{variant}"}))
    rows = pd.concat(found, ignore_index=True)
    return rows[[*ABOUT, *rows.columns.drop(list(ABOUT))]]


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


def about_run(folder: Path, variant: str = "") -> dict:
    """The columns ``ABOUT`` the run in a folder, or about one of the variants that it timed."""
    run = json.loads((folder / "run.json").read_text())
    spec, provenance = RunSpec.from_dict(run["spec"]), run["provenance"]
    spec = replace(spec, scheme=spec.scheme.alone(variant)) if variant else spec
    fields = plugins.fields(spec.scheme.method)
    options = {key: spec.scheme.options.get(key, fields.get(key, {}).get("default")) for key in OPTIONS}
    about = {key: spec.flat()[key] for key in SPEC} | options
    about |= {"run": folder.name, "train_samples": run.get("train_samples"), "disturbed": run.get("disturbed") or None}
    about["data_title"] = run.get("titles", {}).get("data", spec.training.data)
    about |= {key: provenance[key] for key in ("machine", "network")}
    about |= {key: provenance.get(key) for key in LINKS}
    return {key: float("nan") if about[key] is None else about[key] for key in ABOUT}
