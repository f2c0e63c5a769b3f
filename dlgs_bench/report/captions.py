"""What captions and small print say: machine, network, numbers of samples. No torch."""

import re

import pandas as pd

from dlgs_bench.report.load_runs import WHEN

REPEAT = "the 95 % interval of a repeat in the same session"
WHISKERS = f"whiskers: {REPEAT}, from the blocks of one run"
SHORT_EPOCHS = 20  # of the recipes' 80 to 140: fewer say nothing about which variant ends better


def of_script(snakemake) -> str:
    """The caption that the rule hands over, on one line."""
    return " ".join(snakemake.params.caption.split())


def unbroken(text: str) -> str:
    """The text with no-break spaces where a line must not end: "n = 6", "90.6 Mb/s", "3 workers", "[1.2, 1.4]"."""
    text = re.sub(r"\b([ns]) = (?=\d)", "\\1\u00a0=\u00a0", text)
    return re.sub(r"(?<=\d) (?=[a-zA-Z%])|(?<=\d,) (?=[\d.]+\])", "\u00a0", text)


def setting(table: pd.DataFrame) -> str:
    """Machine, network, engine and workers of the rows, and when they were measured, with which commit."""
    parts = []
    for _, rows in table.groupby(["machine", "network", "engine"], dropna=False, sort=False):
        row, workers = rows.iloc[0], " or ".join(map(str, sorted(rows["workers"].unique())))
        parts.append(f"{row['machine']}; {network(rows)}; {row['engine']}, {workers} workers{when(rows)}")
    return " / ".join(parts)


def when(rows: pd.DataFrame) -> str:
    """The days of the measurements and their commits; nothing for tables from before rows said so."""
    days, commits = (sorted(rows[key].dropna().unique()) if key in rows else [] for key in WHEN)
    if not days:
        return ""
    words = f"; {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    return words + (f", commit {' and '.join(commits)}" if commits else "")


def network(rows: pd.DataFrame) -> str:
    """What joined the workers of rows that share a kind of network; of a testbed its rates, what a TCP stream reached,
    and the latency where there is one."""
    words = f"{rows['network'].iloc[0]} network"
    if rows["network"].iloc[0] != "testbed":
        return words
    slowest, fastest = rows["rate_mbit"].min(), rows["fastest_mbit"].max()
    if slowest == fastest:
        reached = least_to_most(rows["measured_mbit"])
        return f"{words}, {slowest:g} Mb/s links (measured {reached}){latency(rows)}"
    reached = least_to_most(100 * rows["measured_mbit"] / rows["rate_mbit"])
    return f"{words}, links of {slowest:g} to {fastest:g} Mb/s (measured {reached} % of the rate){latency(rows)}"


def latency(rows: pd.DataFrame) -> str:
    """How long a message takes from host to host beside its bytes, and a round trip as measured; nothing where the
    links were given no latency. Tables from before there was any do not say."""
    asked = sorted(rows["latency_ms"].dropna().unique()) if "latency_ms" in rows else []
    if not any(asked):
        return ""
    words = " or ".join(f"{ms:g}" for ms in asked)
    return f", {words} ms from host to host (round trips of {least_to_most(rows['round_trip_ms'], 1)} ms)"


def too_short(row) -> bool:
    """Whether a run trained too little of its recipe to rank variants."""
    return row["train_epochs"] < min(SHORT_EPOCHS, row["epochs"])


def seeds(points: pd.DataFrame) -> str:
    """How many seeds, and a warning where the training was too short to rank variants."""
    first, number = points.iloc[0], points["seed"].nunique()
    words = f"n = {number} seed{'s' * (number > 1)}"
    if too_short(first):
        words += f"; {first['train_epochs']:g} of the recipe's {first['epochs']:g} epochs: too short to rank variants"
    if first["precision"] != "float32":
        words += f"; forward and backward in {first['precision']}"
    return words


def counted(table: pd.DataFrame) -> str:
    """What n counts in a summary of timing runs, as "n = 3 to 40 blocks in 2 launches"."""
    blocks, launches = least_to_most(table["blocks"]), table["launches"].max()
    return f"n = {blocks} blocks" + (f" in {launches} launches" if launches > 1 else "")


def repeat(table: pd.DataFrame) -> str:
    """What the intervals in a summary of timing runs are, and what they come from."""
    if table["launches"].max() > 1:
        return f"{REPEAT}, from how much launches differ, pooled over the runs of a model and topology (Student's t)"
    return f"{REPEAT}, from the blocks of one run (Student's t)"


def over_rates(table: pd.DataFrame, beside: str = "") -> str:
    """Of timing runs over links of several rates; ``beside``: what works beside the workers."""
    first, n = table.iloc[0], least_to_most(table["blocks"])
    who = f"{first['machine']}; testbed{latency(table)}; {first['engine']}, {first['workers']} workers{beside}"
    return f"{who}; points: measured, n = {n} blocks each, {WHISKERS}; lines: the time model"


def least_to_most(numbers: pd.Series, digits: int = 0) -> str:
    """As "6 to 9", or "9" where all are the same."""
    return " to ".join(dict.fromkeys(f"{n:.{digits}f}" for n in (numbers.min(), numbers.max())))


def off(table: pd.DataFrame, column: str) -> str:
    """The median and the largest size of a relative error."""
    size = table[column].dropna().abs()
    if size.empty:
        return "of no run"
    return f"median {100 * size.median():.0f} %, worst {100 * size.max():.0f} %"
