"""The titles of variants and models, and their order, as in the configuration. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from dlgs_bench.report.log import Script

Row: TypeAlias = pd.Series | Mapping[str, Any]  # a row of a tidy table or of a summary


@dataclass(frozen=True)
class Names:
    """``variants``, ``models``: name -> title, in the configuration's order.

    ``changed``: the variants that differ from the method of their name with default parameters.
    """

    variants: dict[str, str]
    models: dict[str, str]
    changed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, snakemake: Script) -> "Names":
        """The names in the parameters of a script."""
        params = snakemake.params
        return cls(dict(params.variants), dict(params.models), frozenset(getattr(params, "changed", ())))

    def variant(self, name: str) -> str:
        """The title of a variant, or its name if the configuration does not have it."""
        return self.variants.get(name, name)

    def model(self, name: str) -> str:
        """The title of a model, or its name if the configuration does not have it."""
        return self.models.get(name, name)

    def comparable(self, kept: pd.DataFrame) -> pd.DataFrame:
        """The rows of a kept table without changed variants: a kept run of such a name had other parameters."""
        return kept[~kept["variant"].isin(self.changed)]

    def variants_in(self, present: Iterable[str]) -> list[str]:
        """The names of the variants in ``present``, in the configuration's order."""
        return _in_order(self.variants, present)

    def models_in(self, present: Iterable[str]) -> list[str]:
        """The names of the models in ``present``, in the configuration's order."""
        return _in_order(self.models, present)

    def arrange(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows by model, topology, workers, links, variant and falling ratio: the order of all tables."""
        models, variants = self.models_in(table["model"]), self.variants_in(table["variant"])
        ranks = {"model": table["model"].map(models.index), "variant": table["variant"].map(variants.index)}
        order = table.assign(**ranks, ratio=-table["ratio"].astype(float))
        keys = [
            key
            for key in ("model", "topology", "workers", "collective", "rate_mbit", "variant", "ratio")
            if key in table
        ]
        return table.loc[order.sort_values(keys, na_position="first", kind="stable").index].reset_index(drop=True)


def ratio_of(row: Row) -> float | None:
    """The ratio of a row, or None if its variant has none, as in a spec."""
    return None if pd.isna(row["ratio"]) else row["ratio"]


def _in_order(titles: dict[str, str], present: Iterable[str]) -> list[str]:
    """The configuration's names that are in ``present``, in its order, then the others by name."""
    present = set(present)
    return [name for name in titles if name in present] + sorted(present - titles.keys())


def data_title(row: Row) -> str:
    """The title of the data in a row of a tidy table, marked if the data set is a stand-in."""
    return f"{row['data_title']} (stand-in)" if row["stand_in"] else row["data_title"]


def label(row: Row, names: Names) -> str:
    """The label of a row's run in figures: its variant with the options that decide its time, without the topology."""
    refresh = "" if pd.isna(row["refresh_every"]) else f", s = {row['refresh_every']:g}"
    return method_title(row, names) + refresh + at_ratio(row["ratio"])


def method_title(row: Row, names: Names) -> str:
    """The title of the variant in a row of a tidy table, marked if its selection is compiled."""
    return names.variant(row["variant"]) + (" (compiled)" if row.get("selection") == "compiled" else "")


def at_ratio(ratio: float | None) -> str:
    """The end of a title, such as ", ratio 0.1"; empty without a ratio."""
    return "" if ratio is None or pd.isna(ratio) else f", ratio {ratio:g}"
