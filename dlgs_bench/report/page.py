"""One HTML file with all results: findings, tables, figures, machine and provenance. No torch."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2

from dlgs_bench.atomic_file import write_atomically
from dlgs_bench.report import captions, tables

TITLE = "Does compressing gradients pay?"
TEMPLATE = Path(__file__).with_name("page.html")
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"  # the element of an SVG that holds its caption
CELL, WRAPS = re.compile(r"<td>(.*?)</td>", re.S), 25  # longest cell, in characters, that is shown on one line
NUMBERED = re.compile(r"figure\d+$")
LABELLED = re.compile(r"(Figure \d+): ([^.]+)\.")  # the beginning of the caption of a numbered figure
PIXELS_PER_POINT = 4 / 3
MIME = {".svg": "image/svg+xml", ".png": "image/png"}


def write(
    page: Path, results: Path, files: list[str], findings: list[str], terms: str, paragraphs: Iterable[str] = ()
) -> None:
    """Write the page. It begins with ``paragraphs``, the sentences ``findings`` and an explanation of terms.

    ``files``: the tables (CSV, with HTML next to it) and figures (SVG, with PNG next to it), in the order of the
    workflow. Numbered figures come first, in the order of their numbers. Missing files are left out.
    """
    existing = [path for path in map(Path, files) if path.exists()]
    opening = {"sentences": list(map(captions.unbroken, findings)), "caption": terms}
    sections: list[dict[str, Any]] = [{"name": "findings", "label": "Findings"} | opening]
    sections += [table(path) for path in existing if path.suffix == ".csv" and path.with_suffix(".html").exists()]
    drawn = [path for path in existing if path.suffix == ".svg"]
    sections += map(figure, sorted(drawn, key=lambda path: path.stem if NUMBERED.match(path.stem) else "~"))
    sections.append({"name": "provenance", "label": "Machine and provenance", "facts": facts(results)})
    sections = [EMPTY | section for section in sections]
    text = rendered(TEMPLATE, title=TITLE, paragraphs=list(map(captions.unbroken, paragraphs)), sections=sections)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text.encode())


def rendered(template: Path, **values: Any) -> str:
    """A page from a Jinja template, which can include the files in the folder of this module."""
    parts = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=parts, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)


EMPTY = dict.fromkeys(("title", "sentences", "table", "words", "picture", "width", "alt", "caption", "facts"))


def table(csv: Path) -> dict:
    """The section of a table, from the HTML that ``tables.save_table`` wrote."""
    html = csv.with_suffix(".html").read_text(encoding="utf-8")
    longest = max((len(cell) for cell in CELL.findall(html)), default=0)
    html = CELL.sub(lambda cell: f'<td class="long">{cell[1]}</td>' if len(cell[1]) > WRAPS else cell[0], html)
    html, caption = re.fullmatch(r"(.*)<p>(.*?)</p>\s*", html, re.S).groups()
    metadata = {"name": csv.stem, "caption": unescape(caption), "label": heading(unescape(caption))}
    html = html.replace("<th>", '<th scope="col">').replace(
        "<thead>", f"<caption>{metadata['label']}</caption><thead>", 1
    )
    return metadata | {"table": html, "words": longest > tables.LONG_CELL}


def figure(svg: Path) -> dict:
    """The section of a figure: the smaller of its two files, with the width and the caption of the SVG."""
    caption, width = described(svg)
    caption = captions.unbroken(caption or svg.stem)
    smaller = min(svg, svg.with_suffix(".png"), key=lambda path: path.stat().st_size)
    picture = f"data:{MIME[smaller.suffix]};base64,{b64encode(smaller.read_bytes()).decode()}"
    words = LABELLED.match(caption)
    metadata = {"name": svg.stem, "label": heading(caption), "title": words[0].rstrip(".") if words else None}
    metadata["alt"] = alternative(caption)
    return metadata | {"picture": picture, "width": width, "caption": caption}


def described(svg: Path) -> tuple[str, int]:
    """The caption of a figure, or "" if it has none, and the width in pixels."""
    drawn = ElementTree.parse(svg)
    width = round(float(drawn.getroot().get("width").removesuffix("pt")) * PIXELS_PER_POINT)
    return drawn.findtext(f".//{DESCRIPTION}") or "", width


def alternative(caption: str) -> str:
    """The text for readers who do not see a figure: its title, and the sentence that says which quantities it shows."""
    caption = re.sub(r"^(Figure \d+)\. ", r"\1: ", caption)
    words = LABELLED.match(caption)
    start = words.end() if words else 0
    sentence = caption[start:].partition(". ")[0].strip().rstrip(".")
    return f"{words[0].rstrip('.')}: {sentence}." if words and sentence else f"{(sentence or caption).rstrip('.')}."


def heading(caption: str) -> str:
    """The words before the first colon or full stop, such as "Table 1", "Figure 5" or "Link rates"."""
    return re.split(r"[:.]", caption, maxsplit=1)[0]


def facts(results: Path) -> dict[str, str]:
    """The provenance of all runs: a value that all share, or the list of their values."""
    merged = json.loads((results / "provenance.json").read_text(encoding="utf-8"))
    return {key.replace("_", " ").capitalize(): words(value) for key, value in merged.items()}


def words(value: Any) -> str:
    """A value of the provenance as text."""
    if isinstance(value, list):
        return "; ".join(map(words, value))
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
