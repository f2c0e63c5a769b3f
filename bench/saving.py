"""Writes the measurements of a benchmark as CSV and as Markdown, and prints them."""

from pathlib import Path

import pandas as pd


def save(rows: list[dict], folder: Path, name: str, words: str) -> None:
    """``words``: the line below the table, with the machine that measured it."""
    table = pd.DataFrame(rows)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{name}.csv", index=False, float_format="%.4g")
    text = f"{table.to_markdown(index=False, floatfmt='.4g')}\n\n{words}\n"
    (folder / f"{name}.md").write_text(text)
    print(text, flush=True)
