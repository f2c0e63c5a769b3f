"""Keeps the current tables, figures and provenance as the reference set, and shows them in the README."""

import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results" / "reference"
PAPER = ("table1", "table2")
STUDIES = ("prediction", "fits", "dilation", "planners", "rates", "servers", "selections")


def keep() -> None:
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    names = [f"{name}.{kind}" for name in PAPER for kind in ("csv", "md", "tex")]
    names += [f"{name}.{kind}" for name in STUDIES for kind in ("csv", "md")]
    found = [ROOT / "results" / name for name in [*names, "provenance.json"]]
    found += [path for path in sorted((ROOT / "figures").iterdir()) if path.suffix in (".svg", ".png")]
    found += sorted((ROOT / "results" / "bench").glob("*.md"))
    for path in (path for path in found if path.exists()):
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
