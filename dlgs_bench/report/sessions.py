"""How far speed-ups move between sessions: the range over a table's own session and kept sessions. No torch."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from dlgs_bench.report.compare import SAME
from dlgs_bench.report.names import Names
from dlgs_bench.report.summary import summarise

RANGE = ["session_low", "session_high", "sessions"]
KEYS = [*SAME, "engine"]  # of a row; the kept sessions have one engine


def kept_speedups(paths: Iterable[str], models: Iterable[str], names: Names) -> list[pd.DataFrame]:
    """The undisturbed speed-ups of these models in kept sessions, one table per session.

    Variants with changed parameters are left out, since the kept sessions timed the method's defaults. Old sessions,
    which timed uncompressed with a single way of merging layers, are left out. Their tables have no column for it.
    """
    tables = [names.comparable(pd.read_csv(Path(path))) for path in paths]
    rows = [table[table["model"].isin(list(models))] for table in tables if "bucketing" in table]
    return [summary[summary["disturbed"].isna()] for summary in map(summarise, filter(len, rows))]


def over_sessions(table: pd.DataFrame, sessions: list[pd.DataFrame]) -> pd.DataFrame:
    """``table`` with the columns ``RANGE``: the smallest and largest speed-up of a row, and in how many sessions.

    A session that is the table's own, such as the reference set, counts once. A session of another engine does not
    count. Kept sessions have links in proportion, so rows with links of a fixed rate have no range.
    """
    columns = [*KEYS, "speedup"]
    every = pd.concat([one.loc[_in_proportion(one), columns] for one in (table, *sessions)], ignore_index=True)
    ranges = every.groupby(KEYS, dropna=False)["speedup"].agg(["min", "max", "nunique"])
    table = table.merge(ranges.set_axis(RANGE, axis=1).reset_index(), on=KEYS, how="left")
    table.loc[~_in_proportion(table), RANGE] = float("nan")
    return table


def _in_proportion(table: pd.DataFrame) -> pd.Series:
    """Whether the links of each row follow the speed of the machine. Links of a fixed rate have a factor of 1."""
    return (table["links_low"] != 1) | (table["links_high"] != 1)


def cell(row: dict) -> str:
    """The range of a row as text; empty if no other session has the row."""
    if not row["sessions"] >= 2 or row["variant"] == "none":
        return ""
    return f"{row['session_low']:.2f} to {row['session_high']:.2f} ({row['sessions']:g})"
