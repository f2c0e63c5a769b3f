"""How well methods learnt where this project trained them, from the kept sets of results. No torch, no pandas.

``setup/trained.py`` writes ``trained.csv``.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("trained.csv")
ACCURACY, PERPLEXITY = "accuracy", "perplexity"
SPEED_ONLY = {"ratio", "selection"}  # options of a method's row that do not change what it learns at a ratio


@dataclass(frozen=True)
class Run:
    """The longest kept run of a method with its default parameters, and uncompressed in the same set.

    ``value``, ``uncompressed``: the test accuracy in percent at the end, or the lowest test perplexity; means over
    seeds. ``seeds``: of the method.
    """

    model: str
    measure: str
    epochs: float
    value: float
    uncompressed: float
    seeds: int

    @property
    def text(self) -> str:
        """The result next to uncompressed's, such as ``88.8 (89.1) % after 30 epochs``."""
        both, epochs = f"{self.value:.3g} ({self.uncompressed:.3g})", f"{float(f'{self.epochs:.2g}'):g} epochs"
        return f"{both} % after {epochs}" if self.measure == ACCURACY else f"{both}, the lowest in {epochs}"


@cache
def _runs() -> dict[tuple[str, float | None], list[Run]]:
    found: dict[tuple[str, float | None], list[Run]] = {}
    with TABLE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            run = Run(row["model"], row["measure"], float(row["epochs"]), float(row["value"]),
                      float(row["uncompressed"]), int(row["seeds"]))  # fmt: skip
            found.setdefault((row["method"], float(row["ratio"]) if row["ratio"] else None), []).append(run)
    return found


def runs(method: str, options: Mapping[str, object]) -> list[Run]:
    """A method's kept runs, one per model; an empty list if it has other parameters than these runs."""
    ratio = options.get("ratio")
    if set(options) - SPEED_ONLY or not isinstance(ratio, int | float | None):
        return []
    return _runs().get((method, ratio), [])
