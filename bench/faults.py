"""Faults: how often each was made, how often nothing was lost, and the time until the run had ended.

    python bench/faults.py results/bench 3

Runs every test that uses the fixture ``fault``, here 3 times. config/faults.md lists what the tests require. The time
is from the fault to the end of the last process, which has printed an error. If a fault only delays a run, the time is
from the fault's end to the next step.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pandas as pd
import pytest
from arguments import parser
from noted import TESTS, Noted
from saving import save

from dlgs_bench.training.results import machine

TIMES = {"times": {"type": int, "help": "how often each test runs"}}


def main(folder: Path, times: int) -> int:
    noted = Noted("fault")
    codes = [pytest.main(["-q", "--no-header", str(TESTS)], plugins=[noted]) for _ in range(times)]
    rows = [
        {
            "fault": fault,
            "made": len(result),
            "nothing lost": int(result["held"].sum()),
            "median (s)": result["seconds"].median(),
            "longest (s)": result["seconds"].max(),
        }
        for fault, result in pd.DataFrame(noted.notes).groupby("fault", sort=False)
    ]
    save(rows, folder, "faults", f"{machine('cpu')}; {times} rounds.")
    return max(codes)


if __name__ == "__main__":
    asked = parser(__doc__, TIMES).parse_args()
    sys.exit(main(asked.folder, asked.times))
