"""Compare result sets: which rows of Table 2 agree, which differ, and by how much.

dlgs-bench compare results/reference results

This module imports no torch. Each argument is a folder with timing.csv, or such a file. Two rows are compared if they
have the same model, batch, data, optimizer, variant, options, topology, workers and latency. The rates of their links
may differ: if links are slowed in proportion to the machine, the rate follows from the machine's speed. Of two sets,
every row is shown. Of more sets, each is compared with the first, one row per set.
"""

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from dlgs_bench import figure_file
from dlgs_bench.errors import OneLineParser
from dlgs_bench.report import captions
from dlgs_bench.report.load_runs import OPTIONS
from dlgs_bench.report.summary import summarise
from dlgs_bench.stats import Estimate
from dlgs_bench.topology import ALL_GATHER, TOPOLOGIES

TRAINED = ["model", "batch", "data", "optimizer"]
SAME = [*TRAINED, "variant", "ratio", *OPTIONS, "topology", "collective", "workers", "latency_ms"]
NEAR = 1.15  # two speed-ups are close if they differ by a smaller factor
CAPTION = (
    "Speed-ups of all sets. The speed-up of each method against uncompressed, per model, in every set; from top to "
    "bottom in the order of the legend."
)
VALUES = ["speedup", "speedup_low", "speedup_high", "iteration_s", "blocks", "rate_mbit", "disturbed"]


def read(path: Path) -> pd.DataFrame:
    """The summary of a set's timing runs; ValueError in one line if the set has no table of timing runs."""
    file = path / "timing.csv" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{path}: there is no timing.csv; give a folder of results, or its timing.csv")
    try:
        table = summarise(pd.read_csv(file))
        table = table.reindex(columns=[*SAME, *VALUES, "machine"])
        rates = table["rate_mbit"] if table.duplicated(SAME).any() else math.nan  # then it is a sweep of rates
    except Exception as error:  # whatever another table or a corrupt one leads to
        reason = " ".join(str(error).split())
        raise ValueError(f"{file}: not a table of timing runs ({reason}); give the timing.csv of a set") from None
    return table.assign(swept_mbit=rates)


def join_sets(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The rows that both summaries have, without uncompressed.

    Columns of ``one`` end in ``_a``, columns of ``other`` in ``_b``. ``quotient``: the speed-up in b divided by the
    speed-up in a. ``close``: whether the factor between them is below ``NEAR``. ``inside_a``, ``inside_b``: whether the
    other set's speed-up lies in this set's interval. ``judged_a``, ``judged_b``: whether it has one. ``disturbed``:
    whether one of the two runs was disturbed.
    """
    both = one.merge(other, on=[*SAME, "swept_mbit"], suffixes=("_a", "_b"))
    both = both[both["variant"] != "none"].reset_index(drop=True)
    both["quotient"] = both["speedup_b"] / both["speedup_a"]
    both["close"] = np.abs(np.log(both["quotient"])) < np.log(NEAR)
    for own, others in ("ab", "ba"):
        both[f"inside_{own}"] = both[f"speedup_{others}"].between(
            both[f"speedup_low_{own}"], both[f"speedup_high_{own}"]
        )
        both[f"judged_{own}"] = both[f"speedup_low_{own}"].notna()
    return both.assign(disturbed=both[["disturbed_a", "disturbed_b"]].notna().any(axis=1))


def shown(both: pd.DataFrame) -> pd.DataFrame:
    """The table as text, the largest difference first."""
    order = np.abs(np.log(both["quotient"])).sort_values(ascending=False, kind="stable").index
    return pd.DataFrame(
        {
            "Model": f"{row['model']}, batch {row['batch']:g}",
            "Method": method(row),
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
    counts = (
        f"{both['close'].sum()} of {len(both)} speed-ups differ by less than {100 * (NEAR - 1):.0f} % (median "
        f"difference {100 * median_difference(both):.0f} %). {_inside(both, 'a')} speed-ups of B lie in A's "
        f"intervals, {_inside(both, 'b')} speed-ups of A in B's intervals."
    )
    return f"{counts} {left_out}".rstrip()


def median_difference(both: pd.DataFrame) -> float:
    """The median relative difference of two sets' speed-ups, as of the larger over the smaller."""
    return np.exp(np.abs(np.log(both["quotient"])).median()) - 1


def row_per_set(sets: list[tuple[str, pd.DataFrame]]) -> pd.DataFrame:
    """One row per (name, summary), as text: where it was measured, and how it agrees with the first, which is A."""
    (first, one), *others = sets
    rows = [{"Set": f"{first} (A)", **_about(one)}]
    for name, other in others:
        both = join_sets(one, other)
        both = both[~both["disturbed"]]
        agreement = {"Speed-ups": f"{len(both)}"}
        if len(both):
            agreement |= {
                f"Within {100 * (NEAR - 1):.0f} % of A": f"{both['close'].sum()}",
                "Median difference": f"{100 * median_difference(both):.0f} %",
                "In A's intervals": _inside(both, "a"),
                "A's in its intervals": _inside(both, "b"),
            }
        rows.append({"Set": name, **_about(other), **agreement})
    return pd.DataFrame(rows).fillna("")


def _inside(both: pd.DataFrame, which: str) -> str:
    """How many speed-ups lie in the other set's intervals, out of how many intervals if some rows have none."""
    inside, judged = both[f"inside_{which}"].sum(), both[f"judged_{which}"].sum()
    return f"{inside}" if judged == len(both) else f"{inside} of {judged}"


def title(path: Path) -> str:
    """The name of a set: its folder, or the first part of its file's name, as of slow-2026-11-28_timing.csv."""
    file = path.absolute()
    start = file.name.partition("timing.csv")[0].rstrip("_") if file.is_file() else file.name
    return start or file.parent.name


def _about(table: pd.DataFrame) -> dict:
    return {"Machine": " / ".join(table["machine"].dropna().unique()), "Links (Mb/s)": _rates(table)}


def _rates(table: pd.DataFrame) -> str:
    return captions.least_to_most(table["rate_mbit"].dropna()) if table["rate_mbit"].notna().any() else ""


def method(row: dict) -> str:
    words = [row["variant"]] if pd.isna(row["ratio"]) else [row["variant"], f"ratio {row['ratio']:g}"]
    words += ["compiled selection"] if row["selection"] == "compiled" else []
    return ", ".join(words)


def place(row: dict) -> str:
    """The title of the row's topology; its name if this version does not know it."""
    return TOPOLOGIES[row["topology"]].title if row["topology"] in TOPOLOGIES else row["topology"]


def _topology(row: dict) -> str:
    rate = "" if pd.isna(row["swept_mbit"]) else f", {row['swept_mbit']:g} Mb/s"
    where = place(row)
    return f"{where}, {row['workers']} workers{rate}" if row["topology"] != ALL_GATHER.name or rate else where


def _speedup(row: dict, which: str) -> str:
    speedup = Estimate(*(row[f"speedup{end}_{which}"] for end in ("", "_low", "_high")))
    return f"{speedup.text()}, n = {row[f'blocks_{which}']:g}"


def _agreement(row: dict) -> str:
    if row["disturbed"]:
        return "disturbed"
    if row["inside_a"] or row["inside_b"]:
        return "yes" if row["inside_a"] == row["judged_a"] and row["inside_b"] == row["judged_b"] else "in one interval"
    return f"within {100 * (NEAR - 1):.0f} %" if row["close"] else "no"


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; return 1 after one line on standard error if a set cannot be read."""
    parser = OneLineParser(prog="dlgs-bench compare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("a", type=Path, help="set A: a folder of results, or its timing.csv")
    parser.add_argument("others", type=Path, nargs="+", metavar="b", help="set B, and further sets")
    figure_file.add_option(parser)
    given = parser.parse_args(arguments)
    paths = [given.a, *given.others]
    try:
        if given.figure:
            figure_file.check(given.figure)
        sets = [(title(path), read(path)) for path in paths]
        print(_two(paths, sets) if len(sets) == 2 else _markdown(row_per_set(sets)))
        if given.figure:
            from dlgs_bench.report.compare_figure import draw

            figure_file.write(given.figure, lambda: draw(sets), CAPTION)
            print(f"\nThe figure is in {given.figure}.")
    except ValueError as error:
        print(f"dlgs-bench compare: {error}", file=sys.stderr)
        return 1
    return 0


def _two(paths: list[Path], sets: list[tuple[str, pd.DataFrame]]) -> str:
    both = join_sets(*(table for _, table in sets))
    lines = []
    for name, path, (_, table) in zip("AB", paths, sets, strict=True):
        links = f"; links of {rates} Mb/s" if (rates := _rates(table)) else ""
        lines.append(f"{name}: {path}; {', '.join(table['machine'].dropna().unique())}{links}")
    if both.empty:
        lines.append(
            "The sets have no common row: no rows agree in model, batch, variant, options, topology and workers."
        )
    else:
        lines += ["", _markdown(shown(both)), "", sentence(both)]
    return "\n".join(lines)


def _markdown(table: pd.DataFrame) -> str:
    return table.to_markdown(index=False, disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
