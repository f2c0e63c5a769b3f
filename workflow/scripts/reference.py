"""Keeps the current tables, figures and provenance as the reference set, and shows them in the README."""

import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "reference"


def made() -> list[Path]:
    """The files of every table and figure that is there; a table is what has a Markdown file."""
    figures = [path for path in sorted((ROOT / "figures").iterdir()) if path.suffix in (".svg", ".png")]
    names = {path.stem for path in (ROOT / "results").glob("*.md")} | {path.stem for path in figures}
    tables = [path for path in sorted((ROOT / "results").iterdir()) if path.suffix in (".csv", ".md", ".tex")]
    return [path for path in tables if path.stem in names] + figures


def keep() -> None:
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    for path in [*made(), ROOT / "results" / "provenance.json", *sorted((ROOT / "results" / "bench").glob("*.md"))]:
        shutil.copy(path, KEPT)


def show() -> None:
    """Replace the README's lines between the markers by the tables and their machine."""
    readme = ROOT / "README.md"
    tables = "\n".join((KEPT / f"table{n}.md").read_text() for n in (1, 2))
    provenance = json.loads((KEPT / "provenance.json").read_text())
    machines, commits = "; ".join(provenance["machine"]), ", ".join(provenance["commit"])
    source = f"Measured on {machines}; {provenance['runs']} runs, {provenance['last_run'][:10]}, commit {commits}.\n"
    text = f"<!-- reference -->\n{source}\n{tables}<!-- /reference -->"
    readme.write_text(
        re.sub(r"<!-- reference -->.*<!-- /reference -->", lambda _: text, readme.read_text(), flags=re.S)
    )


if __name__ == "__main__":
    keep()
    show()
