"""Tidy tables from run folders: one row per observation, each with its run's spec and machine. No torch."""

import json
from pathlib import Path

import pandas as pd

from harness.report import style

SPEC = ["model", "method", "ratio", "topology", "engine", "workers", "threads", "seed"]
SPEC += ["data", "stand_in", "batch", "epochs", "train_epochs"]
TRAIN_IMAGES = {"cifar10": 50_000, "imagenet100": 130_000}


def read(paths: list, options: tuple[str, ...] = ("selection",)) -> pd.DataFrame:
    """All rows of the runs' tables, each with its run's spec and machine, and these of its method's options."""
    tables = []
    for path in map(Path, paths):
        run = json.loads((path.parent / "run.json").read_text())
        rows = pd.read_csv(path)
        for position, key in enumerate(SPEC):
            rows.insert(position, key, run["spec"][key])
        rows["train_images"] = TRAIN_IMAGES[run["spec"]["data"]]
        for key in options:
            rows[key] = run["spec"]["options"].get(key)
        rows["machine"] = run["provenance"]["machine"]
        rows["network"] = run["provenance"]["network"]
        for key in style.LINKS:  # of a testbed
            rows[key] = float(run["provenance"].get(key, "nan"))
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)
