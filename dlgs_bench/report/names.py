"""What variants and models are called, and their order: as the run's own configuration says. No torch."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Names:
    """``variants``, ``models``: name -> title, in the configuration's order."""

    variants: dict[str, str]
    models: dict[str, str]

    @classmethod
    def of(cls, snakemake) -> "Names":
        return cls(dict(snakemake.params.variants), dict(snakemake.params.models))

    def variant(self, name: str) -> str:
        return self.variants.get(name, name)

    def model(self, name: str) -> str:
        return self.models.get(name, name)

    def variants_in(self, found) -> list[str]:
        return _in_order(self.variants, found)

    def models_in(self, found) -> list[str]:
        return _in_order(self.models, found)

    def arrange(self, table: pd.DataFrame) -> pd.DataFrame:
        """Rows by model, topology, workers, links, variant and falling ratio: the order of all tables."""
        models, variants = self.models_in(table["model"]), self.variants_in(table["variant"])
        places = {"model": table["model"].map(models.index), "variant": table["variant"].map(variants.index)}
        order = table.assign(**places, ratio=-table["ratio"].astype(float))
        keys = [
            key
            for key in ("model", "topology", "workers", "collective", "rate_mbit", "variant", "ratio")
            if key in table
        ]
        return table.loc[order.sort_values(keys, na_position="first", kind="stable").index].reset_index(drop=True)


def _in_order(known: dict[str, str], found) -> list[str]:
    """The configuration's names that were found, in its order, then the others by name."""
    found = set(found)
    return [name for name in known if name in found] + sorted(found - known.keys())


def data_title(row) -> str:
    """The data of a row of a tidy table; a stand-in is said to be one."""
    return f"{row['data_title']} (stand-in)" if row["stand_in"] else row["data_title"]


def label(row, names: Names) -> str:
    """What figures call the run of a row: its variant with what decides its time; all but the topology."""
    refresh = "" if pd.isna(row["refresh_every"]) else f", s = {row['refresh_every']:g}"
    return method_title(row, names) + refresh + at_ratio(row["ratio"])


def method_title(row, names: Names) -> str:
    """The variant of a row of a tidy table, and whether its selection is not the paper's."""
    return names.variant(row["variant"]) + (" (compiled)" if row.get("selection") == "compiled" else "")


def at_ratio(ratio) -> str:
    """ ", ratio 0.1" for titles; nothing where there is no ratio."""
    return "" if ratio is None or pd.isna(ratio) else f", ratio {ratio:g}"
