"""Keeps the current tables, figures and provenance as the reference set, and shows them in the README."""

import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "reference"


def keep() -> None:
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    for path in [*(ROOT / "results").glob("table[12].[cmt]*"), ROOT / "results" / "provenance.json"]:
        shutil.copy(path, KEPT)
    for path in sorted((ROOT / "figures").glob("figure*")):
        shutil.copy(path, KEPT)


def show() -> None:
    """Replace the README's lines between the markers by the tables and their machine."""
    readme = ROOT / "README.md"
    tables = "\n".join((KEPT / f"table{n}.md").read_text() for n in (1, 2))
    provenance = json.loads((KEPT / "provenance.json").read_text())
    source = (
        f"Measured on {'; '.join(provenance['machine'])}; {provenance['runs']} runs, {provenance['last_run'][:10]}, "
    )
    source += f"commit {', '.join(provenance['commit'])}.\n"
    text = f"<!-- reference -->\n{source}\n{tables}<!-- /reference -->"
    readme.write_text(
        re.sub(r"<!-- reference -->.*<!-- /reference -->", lambda _: text, readme.read_text(), flags=re.S)
    )


if __name__ == "__main__":
    keep()
    show()
