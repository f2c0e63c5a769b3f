"""The part of the blocks of each layer's gradient that is not zero, for one worker, uncompressed.

Layers are in the order in which backward finishes them. The first block of each column of a stream is sent even if it
is zero, and counts. Layers whose blocks are all sent share a line."""

from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, Row
from dlgs_bench.spec import RunSpec


def of_run(path: Path) -> pd.DataFrame:
    """A row for each layer."""
    sent, groups, spec = pd.read_csv(path), pd.read_csv(path.with_name("groups.csv")), RunSpec.in_folder(path.parent)
    layers, sent = (table[table["variant"] == spec.scheme.label] for table in (groups, sent))
    entries, block = layers["entries"].to_numpy(), spec.scheme.streams["block"]
    steps = sent[[str(bucket) for bucket in layers["bucket"]]]
    metadata = run_metadata(path.parent)
    return pd.DataFrame(
        {
            "layer": layers["start"].to_numpy(),
            "entries": entries,
            "blocks": -(-entries // block),
            "density": steps.mean().to_numpy() / entries,
            "steps": len(steps),
        }
    ).assign(**metadata)


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    lines = []
    for model, rows in table.groupby("model", sort=False):
        full = rows[rows["density"] == 1]
        for row in rows[rows["density"] < 1].to_dict("records"):
            lines.append(_row(names.model(model), row["layer"], row["entries"], row["blocks"], row["density"], row))
        if len(full):
            words = f"{len(full)} {'others' if len(full) < len(rows) else 'layers'}"
            lines.append(_row(names.model(model), words, full["entries"].sum(), full["blocks"].sum(), 1, full.iloc[0]))
    return pd.DataFrame(lines)


def _row(model: str, layer: int | str, entries: int, blocks: int, density: float, first: Row) -> dict:
    sizes = {"Entries": f"{entries:,}", "Blocks": f"{blocks:,}"}
    return {"Model": model, "Layer": layer} | sizes | {"Not zero": tables.number(density), "n": first["steps"]}


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    table = pd.concat([of_run(Path(path)) for path in snakemake.input], ignore_index=True)
    caption = f"{captions.of_script(snakemake)} {captions.setting(table)}. n counts steps."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
