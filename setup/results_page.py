"""Write results/index.html: every kept set of results on one page that needs nothing but a browser.

python setup/results_page.py

The sets and how to hand in another one come from results/README.md, the paper's statements from
results/reference/claims.csv, methods from results/reference-methods/methods.csv and config/methods.yaml, pages, figures
and their captions from the folders of the sets.
"""

import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import markdown  # noqa: E402
import pandas as pd  # noqa: E402
import yaml  # noqa: E402
from markdown.extensions.toc import TocExtension, slugify  # noqa: E402

from dlgs_bench import plugins  # noqa: E402
from dlgs_bench.config.variants import variant  # noqa: E402
from dlgs_bench.paper import claims  # noqa: E402
from dlgs_bench.report import tables  # noqa: E402
from dlgs_bench.report.page import alternative, described, rendered  # noqa: E402
from dlgs_bench.report.ranking import TO_TARGET  # noqa: E402

RESULTS = ROOT / "results"
PAGE, INDEX = RESULTS / "index.html", RESULTS / "README.md"
METHODS = RESULTS / "reference-methods" / "methods.csv"
STUDY = yaml.safe_load((ROOT / "config" / "methods.yaml").read_text(encoding="utf-8"))["studies"]["methods"]
CLAIMS = RESULTS / "reference" / "claims.csv"
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


@dataclass(frozen=True)
class Column:
    """``about``: what the heading's words mean; a pointer on the heading shows it."""

    heading: str
    about: str
    cell: Callable[[dict], Cell]


def page() -> str:
    """The whole page."""
    text = INDEX.read_text(encoding="utf-8")
    sets = [match.groupdict(default="") for match in SET.finditer(text)]
    title, steps = HAND_IN.search(text).groups()
    columns, rows = methods(pd.read_csv(METHODS))
    shown = [
        one | {"figures": list(figures(RESULTS / one["folder"])), "page": page_of(RESULTS / one["folder"])}
        for one in sets
    ]
    hand_in = {"title": title, "html": markdown.markdown(steps)}
    statements = claims.in_short(pd.read_csv(CLAIMS))
    values = {"sets": shown, "statements": statements, "columns": columns, "rows": rows, "hand_in": hand_in}
    return rendered(TEMPLATE, **values, methods=METHODS.parent.name) + "\n"


def page_of(folder: Path) -> str:
    """The HTML of a set's page. Its links lead to the same places as in the folder."""

    def anchor_of(words: str, separator: str) -> str:
        return f"{folder.name}-{slugify(words, separator)}"

    heads = TocExtension(baselevel=3, slugify=anchor_of)
    html = markdown.markdown(
        (folder / "README.md").read_text(encoding="utf-8"), extensions=["tables", "fenced_code", heads]
    )

    def moved(link: re.Match) -> str:
        file, _, anchor = link[2].partition("#")
        if not file:
            return f'{link[1]}="#{folder.name}-{anchor}"'
        place = posixpath.normpath(f"{folder.name}/{file}")
        return f'{link[1]}="{place}{f"#{anchor}" if anchor else ""}"'

    html = re.sub(r'(src|href)="(?!https?:)([^"]+)"', moved, html)
    return html.replace("<img ", '<img loading="lazy" ')


def figures(folder: Path) -> Iterator[dict[str, str | int]]:
    """The figures of a set: the path from the page, the width in pixels, its folder in the set, the caption, and the
    alternative text."""
    for svg in sorted(folder.rglob("*.svg")):
        caption, width = described(svg)
        caption = " ".join(caption.split())
        part = svg.parent.relative_to(folder).as_posix().strip(".")
        alt = f"{part}: {alternative(caption)}" if part else alternative(caption)
        path = svg.relative_to(RESULTS).as_posix()
        yield {"path": path, "width": width, "part": part, "caption": caption, "alt": alt}


def methods(table: pd.DataFrame) -> tuple[list[Column], list[list[Cell]]]:
    """The columns of the table of methods, and its rows."""
    plugins.describe_all(("methods", name) for name in table["variant"])  # all in one process
    columns = list(_columns(table))
    return columns, [[column.cell(row) for column in columns] for row in table.to_dict("records")]


def _columns(table: pd.DataFrame) -> Iterator[Column]:
    target = f"{100 * STUDY['target']:g} %"
    yield Column(
        "Method", "", lambda row: Cell(variant(row["variant"], STUDY["variants"].get(row["variant"], {})).title, None)
    )
    yield Column(
        "Ratio",
        "the share of the gradient's entries that the method is asked to send",
        lambda row: number(row["ratio"], "{:g}"),
    )
    yield Column(
        "Bits per entry", "what a worker sends, divided by the number of the gradient's entries; uncompressed: 32",
        lambda row: number(row["bits_per_entry"]),
    )  # fmt: skip
    yield Column(
        "vNMSE", "squared error of the aggregate, divided by the squared mean gradient; 0 is exact",
        lambda row: number(row["vnmse"], "{:.2g}"),
    )  # fmt: skip
    yield Column(
        f"ResNet-20: test accuracy after {table['steps'].max()} steps (%)",
        "one seed",
        lambda row: number(100 * row["accuracy"], "{:.1f}"),
    )
    yield Column(
        "ResNet-20: score", f"1 is the fastest to {target} at all three link rates; 0 takes at least 4 times as long",
        lambda row: spread(row, "score"),
    )  # fmt: skip
    for column in (column for column in table if column.startswith(TO_TARGET)):
        rate = column.removeprefix(TO_TARGET)
        yield Column(
            f"ResNet-20 to {target} at {rate} Mb/s (s)", f"seconds of training until {target} test accuracy",
            lambda row, c=column: duration(row[c]),
        )  # fmt: skip
    for model in (column.removesuffix("_speedup") for column in table if column.endswith("_speedup")):
        name = title("models", model)
        yield Column(
            f"{name}: iteration (ms)",
            "one training step",
            lambda row, m=model: number(1e3 * row[f"{m}_iteration_s"], "{:.0f}"),
        )
        yield Column(
            f"{name}: speed-up",
            "against uncompressed in the same run",
            lambda row, m=model: spread(row, f"{m}_speedup"),
        )
        yield Column(
            f"{name}: against 16 bits",
            "the same against a cast to 16 bits",
            lambda row, m=model: spread(row, f"{m}_against"),
        )
        yield Column(
            f"{name}: computing (%)", "the share of an iteration that is forward or backward",
            lambda row, m=model: number(100 * row[f"{m}_computing"], "{:.0f}"),
        )  # fmt: skip


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
