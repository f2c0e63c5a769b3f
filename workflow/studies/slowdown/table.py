"""Slowdown: the link rate at which this machine has the same ratio of computation to communication as other nodes.

Computation there: the multiply-adds of a batch, divided by the multiply-adds per second of the nodes. By default these
are the paper's nodes, at the speed that ResNet-50 reaches; smaller models are slower on them than this. Computation
here: forward and backward of the calibration, at the batch and with the data of the timing runs. Slowdown: computation
here divided by computation there. Links in proportion: the nodes' link rate divided by the slowdown of one
iteration."""

import json
from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import WHEN, run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title
from dlgs_bench.timemodel.slowdown import Nodes

ABOUT = ("data_title", "stand_in", "machine", "engine", "workers", "network", *WHEN)  # of a calibration


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Model": names.model(row["model"]),
            "Data": data_title(row),
            "Workers": row["workers"],
            "Batch there, here": f"{row['nodes_batch']}, {row['batch']}",
            "Computation there (ms)": tables.number(row["nodes_computation_s"] * 1e3),
            "Computation here (ms)": tables.number(row["computation_s"] * 1e3),
            "Slowdown": tables.number(row["slowdown"]),
            "Links in proportion (Mb/s)": tables.number(row["proportional_mbit"]),
            "n": row["samples"],
        }
        for row in table.to_dict("records")
    )


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    rates = [json.loads(Path(path).read_text(encoding="utf-8")) for path in snakemake.input.rates]
    calibrations = [run_metadata(Path(path).parent) for path in snakemake.input.layers]
    nodes = Nodes(**rates[0]["nodes"])
    table = pd.DataFrame(
        {key: calibration[key] for key in ABOUT} | {key: value for key, value in rate.items() if key != "nodes"}
        for calibration, rate in zip(calibrations, rates, strict=True)
    )
    models = names.models_in(table["model"])
    table = table.sort_values("model", key=lambda column: column.map(models.index), kind="stable")
    there = f"The nodes: {nodes.link_mbit / 1e3:g} Gb/s, {nodes.multiply_adds_s / 1e12:.3g} T multiply-adds a second."
    times_ms = {model: ms for rate in rates for model, ms in rate["nodes"]["computation_ms"].items()}
    if measured := [f"{names.model(model)} {ms:g} ms" for model, ms in times_ms.items()]:
        there += f" Measured on them: {', '.join(measured)}."
    caption = f"{captions.of_script(snakemake)} {there} {captions.setting(pd.DataFrame(calibrations))}."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
