"""Properties: the numbers that the tests of each method measure, and their bounds.

    python bench/properties.py results/bench

Runs every test that uses the fixture ``measured``: the laws that a method's class declares, and the properties that are
special for a method. Figure: the lowest and the highest value of all cases of a test. None of them is a time.
"""

import math
import sys
from pathlib import Path

import pandas as pd
import pytest
from arguments import parser
from noted import TESTS, Noted
from saving import save


def bounds(least: float, most: float) -> str:
    if least == most:
        return f"{least:.4g}"
    if math.isinf(most):
        return f">= {least:.4g}"
    return f"<= {most:.4g}" if math.isinf(least) else f"{least:.4g} to {most:.4g}"


def row(result: pd.DataFrame) -> dict:
    """One test's figure of a method; ``result``: its cases."""
    low, high = (f"{figure:.3g}" for figure in (result["figure"].min(), result["figure"].max()))
    first = result.iloc[0]
    return {
        "method": first["method"],
        "measured": first["what"],
        "figure": low if low == high else f"{low} to {high}",
        "must be": bounds(*first["bounds"]),
        "test": first["test"],
    }


def main(folder: Path) -> int:
    measured = Noted("measured")
    code = pytest.main(
        ["-q", "--no-header", "--hypothesis-profile=thorough", "--hypothesis-seed=0", str(TESTS)], plugins=[measured]
    )
    cases = pd.DataFrame(measured.notes)
    rows = [row(result) for _, result in cases.groupby(["method", "what", "test"])]
    save(rows, folder, "properties", f"{len(rows)} properties of {cases['method'].nunique()} methods.")
    return code


if __name__ == "__main__":
    sys.exit(main(parser(__doc__).parse_args().folder))
