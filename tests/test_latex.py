"""LaTeX tables, compiled: no error, no warning, nothing wider than its page."""

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from support import PATIENCE_S

from dlgs_bench.report import tables

pytestmark = pytest.mark.unit

KEPT = Path(__file__).resolve().parent.parent / "results" / "reference"
ODD = "a_b 5 % & #1 {x} $y$ 2^3 ~ \\ <|> × ± n\u00a0=\u00a06"

needs_latex = pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex on the PATH")


def compiled(folder: Path, *bodies: str) -> str:
    """What LaTeX complains of in a document of these tables, which name their packages."""
    packages = bodies[0].splitlines()[0].removeprefix("% Needs: ").replace(", \\", "\\")
    text = "\n\\clearpage\n".join(bodies)
    (folder / "all.tex").write_text(
        f"\\documentclass[a4paper]{{article}}\n{packages}\n\\begin{{document}}\n{text}\n\\end{{document}}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    for _ in range(3):  # a long table finds its widths in the second run, and is sure of them in the third
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    complaints = ("!", "l.", "Overfull", "LaTeX Warning", "Package")
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith(complaints))


def made_up(rows: int, columns: int, cell: str) -> str:
    table = pd.DataFrame({f"Heading of {i} (%)": [cell] * rows for i in range(columns)})
    return tables.latex(table, f"Table 1: {ODD}. More words. {'And more of them, ' * 20}the end.")


@needs_latex
@pytest.mark.parametrize("rows, columns", [(1, 1), (5, 4), (28, 18), (70, 18), (31, 9)])
def test_tables_of_any_size_fit_their_pages(rows, columns, tmp_path):
    assert not compiled(tmp_path, made_up(rows, columns, "1.23 [1.00, 1.50]"))


@needs_latex
@pytest.mark.parametrize("cell", [ODD, f"{ODD} and words " * 8], ids=["short", "wrapped"])
def test_any_character_is_printed(cell, tmp_path):
    assert not compiled(tmp_path, made_up(12, 5, cell))


@needs_latex
def test_the_tables_of_the_reference_set_compile(tmp_path):
    kept = sorted(KEPT.glob("*.tex"))
    assert kept and not compiled(tmp_path, *(path.read_text() for path in kept))


@needs_latex
def test_what_latex_complains_of_would_be_seen(tmp_path):
    fine = made_up(2, 2, "x")
    assert "Undefined control sequence" in compiled(tmp_path, fine.replace("\\toprule", "\\nothing"))
    assert "Overfull" in compiled(tmp_path, fine.replace("More words", "\\mbox{\\hspace{2\\linewidth}}"))
