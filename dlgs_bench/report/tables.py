"""How tables look: the columns that say which run a row is about, numbers, and files. No torch."""

import re
import textwrap
from html import escape
from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions
from dlgs_bench.report.names import Names, data_title, method_title
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES

ENGINE_SUMS = "engine"  # dlgs_bench.spec.Scheme.collective: dense sums are the engine's own
USUAL_PRECISION = "float32"  # dlgs_bench.spec.Training.precision
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}  # older tables have no such column


def run_columns(row, names: Names) -> dict[str, str]:
    """The columns that say which run a row of a shown table is about; ``save_table`` may drop the last."""
    return {
        "Model": names.model(row["model"]),
        "Method": method_title(row, names),
        "Ratio": "" if pd.isna(row["ratio"]) else f"{row['ratio']:g}",
        "Refresh every": "" if pd.isna(row["refresh_every"]) else f"{row['refresh_every']:g}",
        "Topology": TOPOLOGIES[row["topology"]].title,
        "Workers": row["workers"],
        "Collective": row["collective"],
        "Links (Mb/s)": "" if pd.isna(row["rate_mbit"]) else f"{row['rate_mbit']:g}",
        "Latency (ms)": f"{row['latency_ms']:g}" if row.get("latency_ms", 0) > 0 else "",
        "Optimizer": OPTIMIZERS.get(row.get("optimizer"), "SGD"),
        "Precision": row.get("precision", USUAL_PRECISION),
        "Data": data_title(row),
    }


def _without_the_usual(shown: pd.DataFrame) -> pd.DataFrame:
    """The refresh interval is shown if something has one, the topology unless it is all-gather everywhere, the
    collective unless the engine makes all dense sums, the workers and the links' rate unless all rows share them, the
    links' latency if some have one, the optimizer unless SGD trains everything, the precision unless all computed in
    float32, the perplexity if something trained on text, what disturbed a run if something did, the source of kept runs
    and warnings if there are any."""
    usual = {
        "Refresh every": lambda column: (column == "").all(),
        "Topology": lambda column: (column == ALL_GATHER.title).all(),
        "Collective": lambda column: (column == ENGINE_SUMS).all(),
        "Workers": lambda column: column.nunique() == 1,
        "Links (Mb/s)": lambda column: column.nunique() == 1,
        "Latency (ms)": lambda column: (column == "").all(),
        "Optimizer": lambda column: (column == "SGD").all(),
        "Precision": lambda column: (column == USUAL_PRECISION).all(),
        "Test perplexity": lambda column: (column == "").all(),
        "Disturbed": lambda column: (column == "").all(),
        "Kept run": lambda column: (column == "").all(),
        "Warning": lambda column: (column == "").all(),
    }
    return shown.drop(columns=[name for name, is_usual in usual.items() if name in shown and is_usual(shown[name])])


def save_table(full: pd.DataFrame, shown: pd.DataFrame, caption: str, paths) -> None:
    """``full`` as CSV; ``shown`` (text, short headings) as Markdown, LaTeX and HTML, with the caption."""
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
NARROW = 110  # characters of a row that a page takes upright
LONG_CELL = 60  # characters: such a column is text, whose lines wrap
BROKEN_CELL = 24  # characters of a cell that stays on one line
MOST_ROWS = 30  # of a page on its side
NUMBERED = re.compile(r"^Table \d+: ")  # LaTeX numbers tables itself
AGAIN = re.compile(r"^\\caption\[\].*\n", re.M)  # the whole caption once more on every further page
SPECIAL = {c: rf"\{c}" for c in "%_#&${}"} | {"\u00a0": "~", "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
SPECIAL = str.maketrans(SPECIAL)


def latex(shown: pd.DataFrame, caption: str) -> str:
    """A table that is never wider than its page; a long one, or one whose text wraps, goes on on further pages.

    The caption is the first sentence; the others are a note below.
    """
    words = NUMBERED.sub("", caption)
    title, _, note = (words[:1].upper() + words[1:]).partition(". ")
    title, note = (captions.unbroken(text).translate(SPECIAL) for text in (f"{title.rstrip('.')}.", note))
    lengths = shown.astype(str).map(len).max()
    if (lengths > LONG_CELL).any():
        return f"{NEEDS}\n{_wrapping(shown, lengths, title, note)}"
    tabular = shown.to_latex(index=False, escape=True)
    narrow = max(len(line) for line in tabular.splitlines()) <= NARROW
    pages = 1 if narrow else -(-len(shown) // MOST_ROWS)
    rows = -(-len(shown) // pages)
    parts = []
    for page in range(pages):
        part = shown.iloc[page * rows : (page + 1) * rows]
        filled = {
            "ENVIRONMENT": "table" if narrow else "sidewaystable",
            "CAPTION": title if page == 0 else f"{title} (Continued.)",
            "TABULAR": _stacked(part).to_latex(index=False, escape=False),
            "NOTE": rf"\par\medskip\parbox{{\linewidth}}{{{note}}}" if note and page == pages - 1 else "",
        }
        parts.append(re.sub("|".join(filled), lambda found, filled=filled: filled[found.group()], LATEX))
    return f"{NEEDS}\n" + "\\addtocounter{table}{-1}\n".join(parts)


def _stacked(shown: pd.DataFrame) -> pd.DataFrame:
    """Headings that are longer than their cells, and long cells, on several lines; all for LaTeX."""
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
    """A table whose lines of text wrap, over several pages."""
    widths = lengths.clip(35, 150) / lengths.clip(35, 150).sum()
    columns = "".join(rf">{{\raggedright\arraybackslash}}p{{{0.9 * width:.3f}\linewidth}}" for width in widths)
    cells = shown.astype(str).map(lambda text: captions.unbroken(text).translate(SPECIAL))
    cells.columns = [name.translate(SPECIAL) for name in cells]
    table = cells.to_latex(index=False, escape=False, longtable=True, caption=title, column_format=columns)
    return f"{{\\footnotesize\\setlength{{\\tabcolsep}}{{3pt}}\n{AGAIN.sub('', table)}\\noindent {note}\\par}}\n"


def spread(row, column: str, scale: float = 1, digits: int = 2) -> str:
    """A value with its interval, if it has one: ``<column>``, ``<column>_low``, ``<column>_high``."""
    if pd.isna(row[f"{column}_low"]):
        return f"{row[column] * scale:.{digits}f}"
    value, least, most = (f"{row[column + end] * scale:.{digits}f}" for end in ("", "_low", "_high"))
    return f"{value} [{least}, {most}]"


def error(value: float) -> str:
    """A relative error, over many orders of magnitude; nothing where there is none."""
    return "" if pd.isna(value) else f"{value:.2g}"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if pd.isna(value):
        return ""
    digits = max(0, 2 - int(f"{abs(value):e}".split("e")[1])) if value else 0
    return f"{value:.{min(digits, 6)}f}"
