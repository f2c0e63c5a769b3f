"""Texts for captions and small print: machine, network, numbers of samples. No torch."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from dlgs_bench.report.load_runs import WHEN
from dlgs_bench.report.log import Script
from dlgs_bench.report.names import Row

REPEAT = "the 95 % interval of a repeat in the same session"
WHISKERS = f"whiskers: {REPEAT}, from the blocks of one run"
SHORT_EPOCHS = 20  # of the recipes' 80 to 140: after fewer epochs, variants cannot be ranked
PERPLEXITY = "Test perplexity is the exponential of the test loss per token; the title of the data names the token."


def of_script(snakemake: Script) -> str:
    """The caption in the rule's parameters, on one line."""
    return " ".join(snakemake.params.caption.split())


def unbroken(text: str) -> str:
    """The text with no-break spaces within "n = 6", "90.6 Mb/s", "3 workers", "[1.2, 1.4]"."""
    text = re.sub(r"\b([ns]) = (?=\d)", "\\1\u00a0=\u00a0", text)
    return re.sub(r"(?<=\d) (?=[a-zA-Z%])|(?<=\d,) (?=[\d.]+\])", "\u00a0", text)


def setting(table: pd.DataFrame) -> str:
    """The machine, network, engine, workers, dates and commits of the rows."""
    parts = []
    for _, rows in table.groupby(["machine", "network", "engine"], dropna=False, sort=False):
        row, workers = rows.iloc[0], " or ".join(map(str, sorted(rows["workers"].unique())))
        parts.append(f"{row['machine']}; {network(rows)}; {row['engine']}, {workers} workers{when(rows)}")
    return " / ".join(parts)


def machines(runs: Iterable[Path | str]) -> str:
    """The machines of runs; ``runs``: their files run.json."""
    records = (json.loads(Path(run).read_text(encoding="utf-8")) for run in runs)
    return " / ".join(dict.fromkeys(record["provenance"]["machine"] for record in records))


def when(rows: pd.DataFrame) -> str:
    """The dates and commits of the measurements; empty for old tables without these columns."""
    days, commits = (sorted(rows[key].dropna().unique()) if key in rows else [] for key in WHEN)
    days = sorted({day for period in days for day in period.split(" to ")})  # kept runs can have a period
    commits = sorted({commit for several in commits for commit in several.split(", ")})  # of several launches
    if not days:
        return ""
    words = f"; {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    return words + (f", commit {' and '.join(commits)}" if commits else "")


def network(rows: pd.DataFrame) -> str:
    """The network of rows that share a kind of network. A testbed has rates, the measured TCP rate, and a latency.

    Rows of a summary also say how far links in proportion followed the machine's speed.
    """
    words = f"{rows['network'].iloc[0]} network"
    if rows["network"].iloc[0] != "testbed":
        return words
    slowest, fastest = rows["rate_mbit"].min(), rows["fastest_mbit"].max()
    if slowest == fastest:
        measured = f"measured {least_to_most(rows['measured_mbit'])}"
        words = f"{words}, {slowest:g} Mb/s links"
    else:
        measured = f"measured {least_to_most(100 * rows['measured_mbit'] / rows['rate_mbit'])} % of the rate"
        words = f"{words}, links of {slowest:g} to {fastest:g} Mb/s"
    return f"{words} ({measured}{followed(rows)}){latency(rows)}"


def followed(rows: pd.DataFrame) -> str:
    """How links in proportion were set again during the runs: to rates, or by factors if the rows have several rates.

    It is empty if they were not.
    """
    if "links_low" not in rows or rows["links_low"].isna().all():
        return ""
    factors = pd.concat([rows["links_low"], rows["links_high"]])
    shown = least_to_most(factors, 2)
    if shown == "1.00":
        return ""
    if rows["rate_mbit"].nunique() == 1:
        rates = rows["rate_mbit"].iloc[0] * factors
        extremes = (float(f"{mbit:.3g}") for mbit in (rates.min(), rates.max()))
        shown = f"{' to '.join(dict.fromkeys(f'{mbit:g}' for mbit in extremes))} Mb/s"
    else:
        shown = f"{shown} times the rate"
    return f"; set again for each block, to {shown}, as the machine's speed changed"


def latency(rows: pd.DataFrame) -> str:
    """The configured latency from host to host and the measured round trip; empty for links without latency.

    Old tables have no column for it.
    """
    configured = sorted(rows["latency_ms"].dropna().unique()) if "latency_ms" in rows else []
    if not any(configured):
        return ""
    words = " or ".join(f"{ms:g}" for ms in configured)
    return f", {words} ms from host to host (round trips of {least_to_most(rows['round_trip_ms'], 1)} ms)"


def too_short(row: Row) -> bool:
    """Whether a run trained too few epochs of its recipe to rank variants."""
    return row["train_epochs"] < min(SHORT_EPOCHS, row["epochs"])


def number_of_seeds(points: pd.DataFrame) -> str:
    """The number of seeds of each variant, such as "n = 3 seeds", or "n = 2 to 3 seeds" if variants differ."""
    keys = [key for key in ("model", "variant", "ratio") if key in points]
    counts = points.groupby(keys, dropna=False)["seed"].nunique()
    return f"n = {least_to_most(counts)} {'seeds' if counts.max() > 1 else 'seed'}"


def seeds(points: pd.DataFrame) -> str:
    """The number of seeds, and a warning if the training was too short to rank variants."""
    first, words = points.iloc[0], number_of_seeds(points)
    if too_short(first):
        words += f"; {first['train_epochs']:g} of the recipe's {first['epochs']:g} epochs: too short to rank variants"
    if first["precision"] != "float32":
        words += f"; forward and backward in {first['precision']}"
    return words


def counted(table: pd.DataFrame) -> str:
    """The number of blocks and launches in a summary of timing runs, such as "n = 3 to 40 blocks in 2 launches"."""
    launches = table["launches"].max()
    return blocks(table) + (f" in {launches} launches" if launches > 1 else "")


def blocks(table: pd.DataFrame) -> str:
    """The number of blocks, such as "n = 1 block"."""
    return f"n = {least_to_most(table['blocks'])} {'blocks' if table['blocks'].max() > 1 else 'block'}"


def repeat(table: pd.DataFrame, pooled: str = "the runs of a model and topology") -> str:
    """The meaning and the source of the intervals in a summary of timing runs. ``pooled``: which runs are pooled."""
    if table["iteration_s_low"].isna().all():
        return "none, because there are too few blocks or launches"
    if table["launches"].max() > 1:
        return f"{REPEAT}, from how much launches differ, pooled over {pooled} (Student's t)"
    return f"{REPEAT}, from the blocks of one run (Student's t)"


def over_rates(table: pd.DataFrame, others: str = "", modelled: bool = True) -> str:
    """The small print of timing runs over links of several rates.

    ``others``: about processes that are not workers. ``modelled``: whether there are lines of the time model.
    """
    lines = "; lines: the time model" if modelled else ""
    measured = f"points: measured, {blocks(table)} each, whiskers: {repeat(table)}"
    return f"{setting(table)}{others}; {measured}{lines}"


def least_to_most(numbers: pd.Series, digits: int = 0) -> str:
    """The smallest and the largest number, such as "6 to 9", or "9" if all are equal."""
    return " to ".join(dict.fromkeys(f"{n:.{digits}f}" for n in (numbers.min(), numbers.max())))


def undisturbed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs that no other work disturbed; all rows if the table does not say."""
    return table[table["disturbed"].isna()] if "disturbed" in table else table


def off(table: pd.DataFrame, column: str) -> str:
    """The median and the largest absolute value of a column of relative errors, in per cent, of undisturbed runs."""
    size = undisturbed(table)[column].dropna().abs()
    if size.empty:
        return "not known, n = 0"
    return f"median {100 * size.median():.0f} %, worst {100 * size.max():.0f} %"
