"""Time dilation: the link rate at which this machine computes and communicates in the proportion of other nodes.

Computation there: the multiply-adds of a batch at the rate of the nodes, which by default are the paper's (an upper
bound: small models do not fill a card). Computation here: forward and backward of the calibration, at the batch and
data of the timing runs. The rate is theirs, divided by how much longer one iteration computes here."""

from pathlib import Path

import pandas as pd

from harness.report import captions, tables
from harness.report.log import log_errors
from harness.report.names import Names, data_title
from harness.report.tidy import LINKS, read
from harness.timemodel.dilation import Nodes, dilation


def row_of(iterations: pd.DataFrame) -> dict:
    """One model: seconds of computation there and here, and the rate that keeps their proportion."""
    first = iterations.iloc[0].to_dict()
    here_s = float((iterations["forward_s"] + iterations["backward_s"]).median())
    about = ("model", "data", "data_title", "stand_in", "batch", "machine", "engine", "workers", "network")
    model, nodes = first["model"], Nodes(**snakemake.params.nodes)
    found = dilation(model, snakemake.params.batch[model], here_s, nodes)
    return {key: first[key] for key in about} | found | {"samples": len(iterations)}


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Model": names.model(row["model"]),
            "Data": data_title(row),
            "Workers": row["workers"],
            "Batch there, here": f"{row['nodes_batch']}, {row['batch']}",
            "Computation there (ms)": tables.number(row["nodes_computation_s"] * 1e3),
            "Computation here (ms)": tables.number(row["computation_s"] * 1e3),
            "Dilation": tables.number(row["dilation"]),
            "Links in proportion (Mb/s)": tables.number(row["proportional_mbit"]),
            "n": row["samples"],
        }
        for row in table.to_dict("records")
    )


log_errors(snakemake)
names, nodes = Names.of(snakemake), Nodes(**snakemake.params.nodes)
calibrations = [read([Path(path).with_name("iterations.csv")]) for path in snakemake.input.layers]
models = names.models_in(iterations["model"].iloc[0] for iterations in calibrations)
table = pd.DataFrame(map(row_of, calibrations))
table = table.iloc[table["model"].map(models.index).sort_values(kind="stable").index]
network = pd.concat(iterations[["machine", "network", *LINKS, "engine", "workers"]] for iterations in calibrations)
there = f"The nodes: {nodes.link_mbit / 1e3:g} Gb/s, {nodes.multiply_adds_s / 1e12:.3g} T multiply-adds a second."
caption = f"{captions.of_script(snakemake)} {there} {captions.setting(network)}."
tables.save_table(table, shown(table, names), caption, snakemake.output)
