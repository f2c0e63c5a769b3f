"""The format of tables: columns that identify a run, numbers, and files. No torch."""

import math
import re
import textwrap
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from dlgs_bench.report import captions
from dlgs_bench.report.names import Names, Row, data_title, method_title
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES

ENGINE_SUMS = "engine"  # dlgs_bench.spec.Scheme.collective: the engine makes dense sums
USUAL_PRECISION = "float32"  # dlgs_bench.spec.Training.precision
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}  # older tables have no such column


def run_columns(row: Row, names: Names) -> dict[str, str]:
    """The columns that identify the run of a row. ``save_table`` drops columns that say nothing."""
    return {
        "Model": names.model(row["model"]),
        "Method": method_title(row, names),
        "Ratio": "" if pd.isna(row["ratio"]) else f"{row['ratio']:g}",
        "Refresh every": "" if pd.isna(row["refresh_every"]) else f"{row['refresh_every']:g}",
        "Topology": TOPOLOGIES[row["topology"]].title,
        "Workers": row["workers"],
        "Collective": row["collective"],
        "Links (Mb/s)": links_mbit(row),
        "Latency (ms)": f"{row['latency_ms']:g}" if row.get("latency_ms", 0) > 0 else "",
        "Optimizer": OPTIMIZERS.get(row.get("optimizer"), "SGD"),
        "Precision": row.get("precision", USUAL_PRECISION),
        "Data": data_title(row),
    }


def links_mbit(row: Row) -> str:
    """The rate of the links in Mb/s. Links in proportion follow the machine's speed: of timed rows, the median."""
    rate_mbit = row.get("links_mbit", row.get("rate_mbit"))
    return "" if pd.isna(rate_mbit) else f"{rate_mbit:g}"


def _without_the_usual(shown: pd.DataFrame) -> pd.DataFrame:
    """The table without the columns that have their usual value in all rows, or the same value in all rows."""
    usual = {
        "Refresh every": lambda column: (column == "").all(),
        "Topology": lambda column: (column == ALL_GATHER.title).all(),
        "Collective": lambda column: (column == ENGINE_SUMS).all(),
        "Workers": lambda column: column.nunique() == 1,
        "Block": lambda column: column.nunique() == 1,
        "Best": lambda column: column.nunique() == 1,
        "Learning rate": lambda column: column.nunique() == 1,
        "Equal": lambda column: column.nunique() == 1,
        "Links (Mb/s)": lambda column: column.nunique() == 1,
        "Latency (ms)": lambda column: (column == "").all(),
        "Optimizer": lambda column: (column == "SGD").all(),
        "Precision": lambda column: (column == USUAL_PRECISION).all(),
        "Test perplexity": lambda column: (column == "").all(),
        "Over sessions": lambda column: (column == "").all(),
        "Disturbed": lambda column: (column == "").all(),
        "Kept run": lambda column: (column == "").all(),
        "Warning": lambda column: (column == "").all(),
    }
    return shown.drop(columns=[name for name, is_usual in usual.items() if name in shown and is_usual(shown[name])])


def save_table(full: pd.DataFrame, shown: pd.DataFrame, caption: str, paths: Any) -> None:
    """Write ``full`` as CSV, and ``shown`` (text, short headings) as Markdown, LaTeX and HTML with the caption.

    If both have the same rows, and some of them are of disturbed runs, ``shown`` gets a column that says why.
    """
    if "disturbed" in full and len(full) == len(shown):
        shown = shown.assign(Disturbed=full["disturbed"].fillna("").to_numpy())
    shown = _without_the_usual(shown)
    full.to_csv(paths.csv, index=False, float_format="%.6g")
    piped = shown.map(lambda cell: cell.replace("|", r"\|") if isinstance(cell, str) else cell)
    Path(paths.md).write_text(
        f"{piped.to_markdown(index=False, disable_numparse=True)}\n\n{caption}\n", encoding="utf-8"
    )
    Path(paths.tex).write_text(latex(shown, caption), encoding="utf-8")
    table = shown.to_html(index=False, border=0)
    Path(paths.html).write_text(captions.unbroken(f"{table}\n<p>{escape(caption)}</p>\n"), encoding="utf-8")


LATEX = r"""\begin{ENVIRONMENT}
\centering
\caption{CAPTION}
\scriptsize\setlength{\tabcolsep}{3pt}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
TABULAR}
NOTE
\end{ENVIRONMENT}
"""
NEEDS = r"% Needs: \usepackage[T1]{fontenc}, \usepackage{array, booktabs, graphicx, longtable, rotating}"
NARROW = 110  # characters of a row that fits on a page in portrait format
LONG_CELL = 60  # characters: a column with longer cells is text, whose lines wrap
BROKEN_CELL = 24  # characters: longer cells are broken into lines
MOST_ROWS = 30  # rows of a page in landscape format
NUMBERED = re.compile(r"^Table \d+: ")  # removed, since LaTeX numbers tables itself
SPECIAL = str.maketrans(
    {c: rf"\{c}" for c in "%_#&${}"} | {"\u00a0": "~", "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
)


def latex(shown: pd.DataFrame, caption: str) -> str:
    """The table in LaTeX. It is never wider than a page. Long tables and tables of text continue on further pages.

    The first sentence of ``caption`` becomes the caption, and the others become a note below the table.
    """
    words = NUMBERED.sub("", caption)
    title, _, note = (words[:1].upper() + words[1:]).partition(". ")
    title, note = (captions.unbroken(text).translate(SPECIAL) for text in (f"{title.rstrip('.')}.", note))
    lengths = shown.astype(str).map(len).max()
    if (lengths > LONG_CELL).any():
        return f"{NEEDS}\n{_wrapping(shown, lengths, title, note)}"
    narrow = max(map(len, _rows(_escaped(shown)))) <= NARROW
    pages = 1 if narrow else -(-len(shown) // MOST_ROWS)
    rows = -(-len(shown) // pages)
    parts = []
    for page in range(pages):
        part = shown.iloc[page * rows : (page + 1) * rows]
        filled = {
            "ENVIRONMENT": "table" if narrow else "sidewaystable",
            "CAPTION": title if page == 0 else f"{title} (Continued.)",
            "TABULAR": _tabular(_stacked(part)),
            "NOTE": rf"\par\medskip\parbox{{\linewidth}}{{{note}}}" if note and page == pages - 1 else "",
        }
        parts.append(_filled(LATEX, filled))
    return f"{NEEDS}\n" + "\\addtocounter{table}{-1}\n".join(parts)


def _filled(template: str, values: dict[str, str]) -> str:
    """The template with its words in capitals replaced by their values."""
    return re.sub("|".join(values), lambda match: values[match.group()], template)


def _stacked(shown: pd.DataFrame) -> pd.DataFrame:
    """The table with long cells, and headings that are longer than their cells, on several lines in LaTeX."""
    cells = shown.astype(str)
    longest = cells.map(len).max().clip(upper=BROKEN_CELL)
    headings = {name: _lines(name, longest[name]) for name in cells}
    return cells.map(lambda text: _lines(text, BROKEN_CELL)).rename(columns=headings)


def _lines(text: str, width: int) -> str:
    width = max(width, 1, *map(len, text.split()))
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    stack = r"\\".join(line.translate(SPECIAL) for line in lines)
    return rf"\shortstack[l]{{{stack}}}" if len(lines) > 1 else stack


def _wrapping(shown: pd.DataFrame, lengths: pd.Series, title: str, note: str) -> str:
    """A table over several pages whose lines of text wrap."""
    widths = lengths.clip(35, 150) / lengths.clip(35, 150).sum()
    columns = "".join(rf">{{\raggedright\arraybackslash}}p{{{0.9 * width:.3f}\linewidth}}" for width in widths)
    heading, *rows = _rows(_escaped(shown.astype(str).map(captions.unbroken)))
    lines = [
        r"{\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\begin{{longtable}}{{{columns}}}",
        rf"\caption{{{title}}} \\",
        *(r"\toprule", heading, r"\midrule", r"\endfirsthead"),
        *(r"\toprule", heading, r"\midrule", r"\endhead"),
        *(r"\midrule", rf"\multicolumn{{{len(widths)}}}{{r}}{{Continued on next page}} \\", r"\midrule", r"\endfoot"),
        *(r"\bottomrule", r"\endlastfoot"),
        *rows,
        r"\end{longtable}",
        rf"\noindent {note}\par}}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(shown: pd.DataFrame) -> pd.DataFrame:
    """The table with cells and headings as LaTeX prints them."""
    cells = shown.astype(str).map(lambda text: text.translate(SPECIAL))
    return cells.rename(columns=lambda name: name.translate(SPECIAL))


def _tabular(cells: pd.DataFrame) -> str:
    """A table on one page, without its caption."""
    heading, *rows = _rows(cells)
    begin = rf"\begin{{tabular}}{{{'l' * len(cells.columns)}}}"
    return "\n".join([begin, r"\toprule", heading, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])


def _rows(cells: pd.DataFrame) -> list[str]:
    """The headings and the rows. ``DataFrame.to_latex`` is not used, because it imports matplotlib, which is slow."""
    return [rf"{' & '.join(row)} \\" for row in (cells.columns, *cells.itertuples(index=False))]


def spread(row: Row, column: str, scale: float = 1, digits: int = 2) -> str:
    """A value with its interval, if it has one, from ``<column>``, ``<column>_low`` and ``<column>_high``.

    An interval without width is not printed. A row divided by itself has one, and so has a single seed.
    """
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    if pd.isna(low) or low == high:
        return f"{row[column] * scale:.{digits}f}"
    value, least, most = (f"{each * scale:.{digits}f}" for each in (row[column], low, high))
    return f"{value} [{least}, {most}]"


def error(value: float) -> str:
    """A relative error with two significant digits; empty for NaN."""
    return "" if pd.isna(value) else f"{value:.2g}"


def number(value: float) -> str:
    """A number with three significant digits, without an exponent; empty for NaN, "inf" for infinity."""
    if pd.isna(value) or math.isinf(value):
        return "" if pd.isna(value) else f"{value:g}"
    digits = max(0, 2 - int(f"{abs(value):.2e}".split("e")[1])) if value else 0
    return f"{value:.{min(digits, 6)}f}"
