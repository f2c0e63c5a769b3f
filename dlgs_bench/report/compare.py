"""Compare two result sets: which rows of Table 2 agree, which differ, and by how much.

dlgs-bench compare results/reference results

This module imports no torch. Each argument is a folder with timing.csv, or such a file. Two rows are compared if they
have the same model, batch, variant, options, topology, workers and latency. The rates of their links may differ: if
links are slowed in proportion to the machine, the rate follows from the machine's speed.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from dlgs_bench.errors import OneLineParser
from dlgs_bench.report import captions
from dlgs_bench.report.load_runs import OPTIONS
from dlgs_bench.report.summary import summarise
from dlgs_bench.stats import Estimate
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES

SAME = ["model", "batch", "variant", "ratio", *OPTIONS, "topology", "collective", "workers", "latency_ms"]
NEAR = 1.15  # two speed-ups are close if they differ by a smaller factor
VALUES = ["speedup", "speedup_low", "speedup_high", "iteration_s", "blocks", "rate_mbit", "disturbed"]


def read(path: Path) -> pd.DataFrame:
    """The summary of a set's timing runs; ValueError in one line if the set has no table of timing runs."""
    file = path / "timing.csv" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{path}: there is no timing.csv; give a folder of results, or its timing.csv")
    try:
        table = summarise(pd.read_csv(file))
        table = table.reindex(columns=[*SAME, *VALUES, "machine"])
        rates = table["rate_mbit"] if table.duplicated(SAME).any() else None  # then it is a sweep of rates
    except Exception as error:  # whatever another table or a corrupt one leads to
        reason = " ".join(str(error).split())
        raise ValueError(f"{file}: not a table of timing runs ({reason}); give the timing.csv of a set") from None
    return table.assign(swept_mbit=rates)


def join_sets(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The rows that both summaries have, without uncompressed.

    Columns of ``one`` end in ``_a``, columns of ``other`` in ``_b``. ``quotient``: the speed-up in b divided by the
    speed-up in a. ``close``: whether the factor between them is below ``NEAR``. ``inside_a``, ``inside_b``: whether the
    other set's speed-up lies in this set's interval. ``disturbed``: whether one of the two runs was disturbed.
    """
    both = one.merge(other, on=[*SAME, "swept_mbit"], suffixes=("_a", "_b"))
    both = both[both["variant"] != "none"].reset_index(drop=True)
    both["quotient"] = both["speedup_b"] / both["speedup_a"]
    both["close"] = np.abs(np.log(both["quotient"])) < np.log(NEAR)
    for own, others in ("ab", "ba"):
        both[f"inside_{own}"] = both[f"speedup_{others}"].between(
            both[f"speedup_low_{own}"], both[f"speedup_high_{own}"]
        )
    return both.assign(disturbed=both[["disturbed_a", "disturbed_b"]].notna().any(axis=1))


def shown(both: pd.DataFrame) -> pd.DataFrame:
    """The table as text, the largest difference first."""
    order = np.abs(np.log(both["quotient"])).sort_values(ascending=False, kind="stable").index
    return pd.DataFrame(
        {
            "Model": f"{row['model']}, batch {row['batch']:g}",
            "Method": _method(row),
            "Topology": _topology(row),
            "Speed-up A": _speedup(row, "a"),
            "Speed-up B": _speedup(row, "b"),
            "B / A": f"{row['quotient']:.2f}",
            "Agree": _agreement(row),
        }
        for row in both.loc[order].to_dict("records")
    )


def sentence(both: pd.DataFrame) -> str:
    """Sentences with the numbers of rows that agree, and of disturbed rows, which do not count."""
    disturbed, both = both["disturbed"].sum(), both[~both["disturbed"]]
    left_out = f"{disturbed} speed-ups of disturbed runs are not counted." if disturbed else ""
    if both.empty:
        return left_out
    n, off = len(both), np.exp(np.abs(np.log(both["quotient"])).median()) - 1
    counts = (
        f"{both['close'].sum()} of {n} speed-ups differ by less than {100 * (NEAR - 1):.0f} % (median difference "
        f"{100 * off:.0f} %). {both['inside_a'].sum()} speed-ups of B lie in A's intervals, {both['inside_b'].sum()} "
        "speed-ups of A in B's intervals."
    )
    return f"{counts} {left_out}".rstrip()


def _method(row: dict) -> str:
    words = [row["variant"]] if pd.isna(row["ratio"]) else [row["variant"], f"ratio {row['ratio']:g}"]
    words += ["compiled selection"] if row["selection"] == "compiled" else []
    return ", ".join(words)


def _topology(row: dict) -> str:
    title = TOPOLOGIES[row["topology"]].title if row["topology"] in TOPOLOGIES else row["topology"]
    rate = "" if pd.isna(row["swept_mbit"]) else f", {row['swept_mbit']:g} Mb/s"
    return f"{title}, {row['workers']} workers{rate}" if row["topology"] != ALL_GATHER.name or rate else title


def _speedup(row: dict, which: str) -> str:
    speedup = Estimate(*(row[f"speedup{end}_{which}"] for end in ("", "_low", "_high")))
    return f"{speedup.text()}, n = {row[f'blocks_{which}']:g}"


def _agreement(row: dict) -> str:
    if row["disturbed"]:
        return "disturbed"
    if row["inside_a"] and row["inside_b"]:
        return "yes"
    if row["inside_a"] or row["inside_b"]:
        return "in one interval"
    return "within 15 %" if row["close"] else "no"


def main(arguments: list[str] | None = None) -> int:
    """Print the table and the sentence; return 1 after one line on standard error if a set cannot be read."""
    parser = OneLineParser(prog="dlgs-bench compare", description=__doc__.splitlines()[0])
    parser.add_argument("a", type=Path, help="set A: a folder of results, or its timing.csv")
    parser.add_argument("b", type=Path, help="set B: a folder of results, or its timing.csv")
    paths = parser.parse_args(arguments)
    try:
        one, other = read(paths.a), read(paths.b)
    except ValueError as error:
        print(f"dlgs-bench compare: {error}", file=sys.stderr)
        return 1
    both = join_sets(one, other)
    for name, path, table in (("A", paths.a, one), ("B", paths.b, other)):
        rates = captions.least_to_most(table["rate_mbit"].dropna()) if table["rate_mbit"].notna().any() else ""
        links = f"; links of {rates} Mb/s" if rates else ""
        print(f"{name}: {path}; {', '.join(table['machine'].dropna().unique())}{links}")
    if both.empty:
        print("The sets have no common row: no rows agree in model, batch, variant, options, topology and workers.")
        return 0
    print(f"\n{shown(both).to_markdown(index=False, disable_numparse=True)}\n\n{sentence(both)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
