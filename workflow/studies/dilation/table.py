"""Time dilation: the link rate at which this machine computes and communicates in the paper's proportion.

The paper's nodes have one RTX 4090 and 2 x 25 Gb/s each. Computation there: published training throughput of
ResNet-50 at 224 x 224 on that card (PyTorch, TF32: 721 images/s, Lambda, October 2022), at the same rate of
multiply-adds for the other models (an upper bound: small models do not fill the card). Computation here:
forward and backward of the calibration, at this configuration's batch and data. The rate is the paper's,
divided by how much longer one iteration computes here."""

from pathlib import Path

import pandas as pd

from harness import plugins
from harness.report import captions, tables
from harness.report.log import log_errors
from harness.report.names import Names, data_title
from harness.report.tidy import LINKS, read

PAPER_MBIT = 2 * 25_000
IMAGES_S, CARD_MODEL = 721, "resnet50"
PAPER_BATCH = {"resnet20": 32, "vgg16": 32, "resnet50": 64}  # other models: this configuration's batch


def multiply_adds(model: str) -> float:
    """Of a forward pass over one sample of the data that the model is made for."""
    return plugins.describe("models", model)["multiply_adds"]


def row_of(iterations: pd.DataFrame) -> dict:
    """One model: seconds of computation there and here, and the rate that keeps their proportion."""
    first = iterations.iloc[0].to_dict()
    here_s = float((iterations["forward_s"] + iterations["backward_s"]).median())
    model = first["model"]
    batch = PAPER_BATCH.get(model, first["batch"])
    there_s = batch * multiply_adds(model) / (IMAGES_S * multiply_adds(CARD_MODEL))
    about = ("model", "data", "data_title", "stand_in", "batch", "machine", "engine", "workers", "network")
    return {key: first[key] for key in about} | {
        "paper_computation_s": there_s,
        "computation_s": here_s,
        "dilation": here_s / there_s,
        "rate_mbit": PAPER_MBIT * there_s / here_s,
        "samples": len(iterations),
    }


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Model": names.model(row["model"]),
            "Data": data_title(row),
            "Computation, RTX 4090 (ms)": tables.number(row["paper_computation_s"] * 1e3),
            "Computation, here (ms)": tables.number(row["computation_s"] * 1e3),
            "Dilation": tables.number(row["dilation"]),
            "50 Gb/s become (Mb/s)": tables.number(row["rate_mbit"]),
            "n": row["samples"],
        }
        for row in table.to_dict("records")
    )


log_errors(snakemake)
names = Names.of(snakemake)
calibrations = {}
for path in map(Path, snakemake.input.layers):
    iterations = read([path.with_name("iterations.csv")])
    calibrations[iterations["model"].iloc[0]] = iterations
order = names.models_in(calibrations)
table = pd.DataFrame(row_of(calibrations[model]) for model in order)
network = pd.concat(calibrations[model][["machine", "network", *LINKS, "engine", "workers"]] for model in order)
caption = f"{captions.of_script(snakemake)} {captions.setting(network)}."
tables.save_table(table, shown(table, names), caption, snakemake.output)
