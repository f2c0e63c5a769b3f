"""Gathers the study of the refresh interval: curves, and the realised density of every step."""

import json
from pathlib import Path

import pandas as pd

from harness import style
from harness.tidy import read


def with_interval(paths: list[Path]) -> pd.DataFrame:
    """The runs' tables, with the refresh interval of each run as a column."""
    tables = []
    for path in paths:
        table = read([path])
        run = json.loads((path.parent / "run.json").read_text())
        table.insert(3, "refresh_every", run["spec"]["options"]["refresh_every"])
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


style.log_errors(snakemake)
points = [Path(path) for path in snakemake.input.points]
with_interval(points).to_csv(snakemake.output.accuracy, index=False)
steps = with_interval([path.with_name("iterations.csv") for path in points])
steps = steps[["model", "method", "ratio", "refresh_every", "seed", "step", "phase", "density", "sent_bytes"]]
steps.to_csv(snakemake.output.density, index=False)
