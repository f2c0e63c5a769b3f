"""How tables look: the columns that say which run a row is about, numbers, and files. No torch."""

import re
from html import escape
from pathlib import Path

import pandas as pd

from harness.report import captions
from harness.report.names import Names, data_title, method_title
from harness.topology import ALL_GATHER, TOPOLOGIES

ENGINE_SUMS = "engine"  # harness.spec.Scheme.collective: dense sums are the engine's own


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
        "Data": data_title(row),
    }


def _without_the_usual(shown: pd.DataFrame) -> pd.DataFrame:
    """The refresh interval is shown if something has one, the topology unless it is all-gather everywhere, the
    collective unless the engine makes all dense sums, the workers and the links' rate unless all rows share them, the
    links' latency if some have one, what disturbed a run if something did."""
    usual = {
        "Refresh every": lambda column: (column == "").all(),
        "Topology": lambda column: (column == ALL_GATHER.title).all(),
        "Collective": lambda column: (column == ENGINE_SUMS).all(),
        "Workers": lambda column: column.nunique() == 1,
        "Links (Mb/s)": lambda column: column.nunique() == 1,
        "Latency (ms)": lambda column: (column == "").all(),
        "Disturbed": lambda column: (column == "").all(),
    }
    return shown.drop(columns=[name for name, is_usual in usual.items() if name in shown and is_usual(shown[name])])


def save_table(full: pd.DataFrame, shown: pd.DataFrame, caption: str, paths) -> None:
    """``full`` as CSV; ``shown`` (text, short headings) as Markdown, LaTeX and HTML, with the caption."""
    shown = _without_the_usual(shown)
    full.to_csv(paths.csv, index=False, float_format="%.6g")
    Path(paths.md).write_text(f"{shown.to_markdown(index=False, disable_numparse=True)}\n\n{caption}\n")
    Path(paths.tex).write_text(latex(shown, caption))
    table = shown.to_html(index=False, border=0)
    Path(paths.html).write_text(captions.unbroken(f"{table}\n<p>{escape(caption)}</p>\n"))


LATEX = r"""% Needs: \usepackage[utf8]{inputenc}, \usepackage{booktabs, graphicx, rotating, longtable}
\begin{ENVIRONMENT}
\centering
\caption{CAPTION}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
TABULAR}
\end{ENVIRONMENT}
"""
NARROW = 110  # characters of a row that a page takes upright
LONG_CELL = 60  # characters: such a column is text, whose lines wrap
NUMBERED = re.compile(r"^Table \d+: ")  # LaTeX numbers tables itself
AGAIN = re.compile(r"^\\caption\[\].*\n", re.M)  # the whole caption once more on every further page


def latex(shown: pd.DataFrame, caption: str) -> str:
    """A table that is never wider than its page, on its side if its rows are long; text wraps, over several pages."""
    words = NUMBERED.sub("", captions.unbroken(caption))
    words = words[:1].upper() + words[1:]
    for character, command in (("%", r"\%"), ("_", r"\_"), ("^", r"\^{}"), ("#", r"\#"), ("&", r"\&"), ("\u00a0", "~")):
        words = words.replace(character, command)
    lengths = shown.astype(str).map(len).max()
    if (lengths > LONG_CELL).any():
        widths = lengths.clip(35, 150) / lengths.clip(35, 150).sum()
        columns = "".join(rf">{{\raggedright\arraybackslash}}p{{{0.84 * width:.3f}\linewidth}}" for width in widths)
        table = shown.to_latex(index=False, escape=True, longtable=True, caption=words, column_format=columns)
        table = AGAIN.sub("", table)
        return f"{LATEX.splitlines()[0].replace('graphicx', 'array')}\n{{\\footnotesize\n{table}}}\n"
    tabular = shown.to_latex(index=False, escape=True)
    longest = max(len(line) for line in tabular.splitlines())
    parts = {"ENVIRONMENT": "table" if longest <= NARROW else "sidewaystable", "CAPTION": words, "TABULAR": tabular}
    return re.sub("|".join(parts), lambda found: parts[found.group()], LATEX)


def spread(row, column: str, scale: float = 1, digits: int = 2) -> str:
    """A value with its interval: ``<column>``, ``<column>_low``, ``<column>_high``."""
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
