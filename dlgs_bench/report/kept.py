"""Long accuracy runs that are kept in the repository. They replace runs that trained too few epochs. No torch."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions
from dlgs_bench.report.names import Names

LEAST_STEPS = 100  # of a training that is shown; a shorter curve shows the start only
LEARNT = 0.9  # a training has left chance level if its loss is below this share of the loss at its first point


def read(paths: Iterable[str]) -> list[pd.DataFrame]:
    """The tidy tables of kept accuracy runs."""
    return [pd.read_csv(Path(path)) for path in paths]


def longest(tables: list[pd.DataFrame], model: str, ratios: set[float], names: Names) -> pd.DataFrame:
    """The longest kept training of a model: the rows of one table, for the configuration's variants.

    Tables with one of ``ratios`` are preferred. Tables are not mixed, since their runs differ in precision and machine.
    The result is empty if the model has no kept run.
    """
    candidates = []
    for table in tables:
        rows = names.comparable(table)
        rows = rows[(rows["model"] == model) & rows["variant"].isin(names.variants)]
        if len(rows):
            rank = bool(ratios & set(rows["ratio"].dropna())), rows["epoch"].max(), rows["run"].nunique()
            candidates.append((rank, rows))
    return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else pd.DataFrame()


def instead_of(
    points: pd.DataFrame, tables: list[pd.DataFrame], model: str, ratios: set[float], names: Names
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of the model in ``points`` that are worth showing, and the kept rows to show next to them.

    Either can be empty. If the model has no kept run, all its rows are shown.
    """
    own = points[points["model"] == model]
    if len(own) and not captions.too_short(own.iloc[0]):
        return own, pd.DataFrame()
    kept = longest(tables, model, ratios, names)
    return (own if len(own) and (kept.empty or learnt(own)) else own.iloc[:0]), kept


def learnt(points: pd.DataFrame) -> bool:
    """Whether the accuracy runs of one model have left chance level."""
    by_step = points.groupby("step")["train_loss"].mean()
    return by_step.index.max() >= LEAST_STEPS and by_step.iloc[-1] < LEARNT * by_step.iloc[0]
