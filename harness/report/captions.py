"""What captions and small print say: machine, network, numbers of samples. No torch."""

import pandas as pd

SHORT_EPOCHS = 20  # of the recipes' 80 to 140: fewer say nothing about which variant ends better


def of_script(snakemake) -> str:
    """The caption that the rule hands over, on one line."""
    return " ".join(snakemake.params.caption.split())


def setting(table: pd.DataFrame) -> str:
    """Machine, network, engine and workers of the rows."""
    parts = []
    keys = ["machine", "network", "rate_mbit", "fastest_mbit", "engine", "workers"]
    for _, rows in table.groupby([key for key in keys if key in table], dropna=False, sort=False):
        row = rows.iloc[0]
        parts.append(f"{row['machine']}; {network(rows)}; {row['engine']}, {row['workers']} workers")
    return " / ".join(parts)


def network(rows: pd.DataFrame) -> str:
    """The network of rows that share one; of a testbed its rates and what a TCP stream reached."""
    row = rows.iloc[0]
    words = f"{row['network']} network"
    if row["network"] != "testbed":
        return words
    rate, fastest = row["rate_mbit"], row["fastest_mbit"]
    words += f", {rate:g} Mb/s links" if rate == fastest else f", links of {rate:g} to {fastest:g} Mb/s"
    least, most = rows["measured_mbit"].min(), rows["measured_mbit"].max()
    return f"{words} (measured {least:.0f}" + (f" to {most:.0f})" if least != most else ")")


def too_short(row) -> bool:
    """Whether a run trained too little of its recipe to rank variants."""
    return row["train_epochs"] < min(SHORT_EPOCHS, row["epochs"])


def seeds(points: pd.DataFrame) -> str:
    """How many seeds, and a warning where the training was too short to rank variants."""
    first, number = points.iloc[0], points["seed"].nunique()
    words = f"n = {number} seed{'s' * (number > 1)}"
    if too_short(first):
        words += f"; {first['train_epochs']:g} of the recipe's {first['epochs']:g} epochs: too short to rank variants"
    return words


def least_to_most(numbers: pd.Series) -> str:
    """As "6 to 9", or "9" where all are the same."""
    return " to ".join(f"{n:.0f}" for n in sorted({numbers.min(), numbers.max()}))


def off(table: pd.DataFrame, column: str) -> str:
    """The median and the largest size of a relative error."""
    size = table[column].abs()
    return f"median {size.median():.0%}, worst {size.max():.0%}"
