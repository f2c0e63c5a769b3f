"""How tables look: the columns that say which run a row is about, numbers, and files. No torch."""

from html import escape
from pathlib import Path

import pandas as pd

from harness.report.names import Names, data_title
from harness.topology import ALL_GATHER, TOPOLOGIES

ENGINE_SUMS = "engine"  # harness.spec.Scheme.collective: dense sums are the engine's own


def run_columns(row, names: Names) -> dict[str, str]:
    """The columns that say which run a row of a shown table is about; ``save_table`` may drop the last."""
    return {
        "Model": names.model(row["model"]),
        "Data": data_title(row),
        "Method": names.variant(row["variant"]) + (" (fast)" if row.get("selection") == "fast" else ""),
        "Ratio": "" if pd.isna(row["ratio"]) else f"{row['ratio']:g}",
        "Topology": TOPOLOGIES[row["topology"]].title,
        "Workers": row["workers"],
        "Collective": row["collective"],
        "Links (Mb/s)": "" if pd.isna(row["rate_mbit"]) else f"{row['rate_mbit']:g}",
    }


def _without_the_usual(shown: pd.DataFrame) -> pd.DataFrame:
    """The topology is shown unless it is all-gather everywhere, the collective unless the engine makes all dense
    sums, the workers and the links' rate unless all rows share them, what disturbed a run if something did."""
    usual = {
        "Topology": lambda column: (column == ALL_GATHER.title).all(),
        "Collective": lambda column: (column == ENGINE_SUMS).all(),
        "Workers": lambda column: column.nunique() == 1,
        "Links (Mb/s)": lambda column: column.nunique() == 1,
        "Disturbed": lambda column: (column == "").all(),
    }
    return shown.drop(columns=[name for name, is_usual in usual.items() if name in shown and is_usual(shown[name])])


def save_table(full: pd.DataFrame, shown: pd.DataFrame, caption: str, paths) -> None:
    """``full`` as CSV; ``shown`` (text, short headings) as Markdown, LaTeX and HTML, with the caption."""
    shown = _without_the_usual(shown)
    full.to_csv(paths.csv, index=False, float_format="%.6g")
    Path(paths.md).write_text(f"{shown.to_markdown(index=False, disable_numparse=True)}\n\n{caption}\n")
    escaped = caption.replace("%", "\\%").replace("_", "\\_").replace("^", "\\^{}")
    Path(paths.tex).write_text(shown.to_latex(index=False, escape=True, caption=escaped))
    Path(paths.html).write_text(PAGE.format(table=shown.to_html(index=False, border=0), caption=escape(caption)))


PAGE = """<!doctype html><meta charset="utf-8">
<style>
body {{ font: 14px sans-serif; margin: 1em }}
table {{ border-collapse: collapse }}
th, td {{ padding: 3px 10px; text-align: left; border-bottom: 1px solid #ccc }}
p {{ max-width: 60em; color: #333 }}
</style>
{table}
<p>{caption}</p>
"""


def spread(row, column: str, scale: float = 1, digits: int = 2) -> str:
    """A value with its interval: ``<column>``, ``<column>_low``, ``<column>_high``."""
    value, least, most = (f"{row[column + end] * scale:.{digits}f}" for end in ("", "_low", "_high"))
    return f"{value} [{least}, {most}]"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if pd.isna(value):
        return ""
    digits = max(0, 2 - int(f"{abs(value):e}".split("e")[1])) if value else 0
    return f"{value:.{min(digits, 6)}f}"
