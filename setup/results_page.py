"""Write results/index.html: every kept set of results on one page that needs nothing but a browser.

python setup/results_page.py

The sets and how to hand in another one come from results/README.md, methods from results/reference-methods/methods.csv,
figures and their captions from the folders of the sets.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import markdown  # noqa: E402
import pandas as pd  # noqa: E402

from dlgs_bench import plugins  # noqa: E402
from dlgs_bench.report import tables  # noqa: E402
from dlgs_bench.report.page import alternative, described, rendered  # noqa: E402
from dlgs_bench.report.ranking import TO_TARGET  # noqa: E402

RESULTS = ROOT / "results"
PAGE, INDEX = RESULTS / "index.html", RESULTS / "README.md"
METHODS = RESULTS / "reference-methods" / "methods.csv"
TEMPLATE = Path(__file__).with_suffix(".html")
SET = re.compile(
    r"^\| \[(?P<name>[^]]+)\]\((?P<folder>[^)/]+)/README\.md\)(?:: (?P<about>[^|]+?))? \| (?P<date>[^|]+?) \|"
    r" (?P<machine>[^|]+?) \| (?P<commits>[^|]+?) \| (?P<headline>[^|]+?) \|$",
    re.M,
)
HAND_IN = re.compile(r"^## (Hand in .*?)\n(.*?)(?=^## |\Z)", re.M | re.S)


@dataclass(frozen=True)
class Cell:
    """What a cell of the table of methods shows, and the number that it is sorted by; None comes last."""

    text: str
    value: float | None


def page() -> str:
    """The whole page."""
    text = INDEX.read_text(encoding="utf-8")
    sets = [match.groupdict(default="") for match in SET.finditer(text)]
    title, steps = HAND_IN.search(text).groups()
    headings, rows = methods(pd.read_csv(METHODS))
    shown = [one | {"figures": list(figures(RESULTS / one["folder"]))} for one in sets]
    hand_in = {"title": title, "html": markdown.markdown(steps)}
    values = {"sets": shown, "headings": headings, "rows": rows, "hand_in": hand_in}
    return rendered(TEMPLATE, **values, methods=METHODS.parent.name) + "\n"


def figures(folder: Path) -> Iterator[dict[str, str | int]]:
    """The figures of a set: the path from the page, the width in pixels, the caption, and the alternative text."""
    for svg in sorted(folder.rglob("*.svg")):
        caption, width = described(svg)
        caption = " ".join((caption or f"{svg.stem}, a figure of the set {folder.name}").split())
        path = svg.relative_to(RESULTS).as_posix()
        yield {"path": path, "width": width, "caption": caption, "alt": alternative(caption)}


def methods(table: pd.DataFrame) -> tuple[list[str], list[list[Cell]]]:
    """The headings of the table of methods, and its rows."""
    plugins.describe_all(("methods", name) for name in table["variant"])  # all in one process
    columns = dict(_columns(table))
    rows = [[cell(row) for cell in columns.values()] for row in table.to_dict("records")]
    return list(columns), rows


def _columns(table: pd.DataFrame) -> Iterator[tuple[str, Callable[[dict], Cell]]]:
    """(heading, the cell of a row) of each column."""
    yield "Method", lambda row: Cell(title("methods", row["variant"]), None)
    yield "Ratio", lambda row: number(row["ratio"], "{:g}")
    yield "Bits per entry", lambda row: number(row["bits_per_entry"])
    yield "vNMSE", lambda row: number(row["vnmse"], "{:.2g}")
    yield f"Test accuracy after {table['steps'].max()} steps (%)", lambda row: number(100 * row["accuracy"], "{:.1f}")
    yield "Score", lambda row: number(row["score"], "{:.2f}")
    for column in (column for column in table if column.startswith(TO_TARGET)):
        rate = column.removeprefix(TO_TARGET)
        yield f"ResNet-20 to 30 % at {rate} Mb/s (s)", lambda row, c=column: duration(row[c])
    for model in (column.removesuffix("_speedup") for column in table if column.endswith("_speedup")):
        name = title("models", model)
        yield f"{name}: iteration (ms)", lambda row, m=model: number(1e3 * row[f"{m}_iteration_s"], "{:.0f}")
        yield f"{name}: speed-up", lambda row, m=model: spread(row, f"{m}_speedup")
        yield f"{name}: against 16 bits", lambda row, m=model: spread(row, f"{m}_against")
        yield f"{name}: computing (%)", lambda row, m=model: number(100 * row[f"{m}_computing"], "{:.0f}")


def title(kind: str, name: str) -> str:
    """What tables call a plug-in; its name if it is not in the repository."""
    return plugins.describe(kind, name)["title"] if name in plugins.names(kind) else name


def number(value: float, form: str = "") -> Cell:
    if pd.isna(value):
        return Cell("", None)
    return Cell(form.format(value) if form else tables.number(value), value)


def duration(value: float) -> Cell:
    """Seconds to an accuracy; "never", which is sorted after all numbers, if they are infinite."""
    return Cell("never", None) if value == float("inf") else number(value)


def spread(row: dict, column: str) -> Cell:
    return Cell(tables.spread(row, column), row[column])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
