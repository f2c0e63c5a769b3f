"""Time dilation: the link rate at which this machine computes and communicates in the paper's proportion.

The paper's nodes have one RTX 4090 and 2 x 25 Gb/s each. Computation there: published training throughput of
ResNet-50 at 224 x 224 on that card (PyTorch, TF32: 721 images/s, Lambda, October 2022), at the same rate of
multiply-adds for the other models (an upper bound: small models do not fill the card). Computation here:
forward and backward of the calibration, at this configuration's batch and image size. The rate is the paper's,
divided by how much longer one iteration computes here."""

from pathlib import Path

import pandas as pd

from harness.report import style
from harness.report.tidy import read

PAPER_MBIT = 2 * 25_000
IMAGES_S = 721
# Multiply-adds of a forward pass, in 1e6: He et al. (2016) for ResNet-20, Simonyan and Zisserman's 13
# convolutions at 32 x 32 for VGG16, torchvision's figure for ResNet-50 at 224 x 224.
MULTIPLY_ADDS = {"resnet20": 40.8, "vgg16": 313, "resnet50": 4089}
PAPER_BATCH = {"resnet20": 32, "vgg16": 32, "resnet50": 64}


def row_of(iterations: pd.DataFrame) -> dict:
    """One model: seconds of computation there and here, and the rate that keeps their proportion."""
    first = iterations.iloc[0].to_dict()
    here_s = float((iterations["forward_s"] + iterations["backward_s"]).median())
    model = first["model"]
    there_s = PAPER_BATCH[model] * MULTIPLY_ADDS[model] / (IMAGES_S * MULTIPLY_ADDS["resnet50"])
    about = {
        key: first[key] for key in ("model", "data", "stand_in", "batch", "machine", "engine", "workers", "network")
    }
    return about | {
        "paper_computation_s": there_s,
        "computation_s": here_s,
        "dilation": here_s / there_s,
        "rate_mbit": PAPER_MBIT * there_s / here_s,
        "samples": len(iterations),
    }


def show(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Model": style.MODELS[row["model"]],
            "Data": style.data_label(row),
            "Computation, RTX 4090 (ms)": style.number(row["paper_computation_s"] * 1e3),
            "Computation, here (ms)": style.number(row["computation_s"] * 1e3),
            "Dilation": style.number(row["dilation"]),
            "50 Gb/s become (Mb/s)": style.number(row["rate_mbit"]),
            "n": row["samples"],
        }
        for row in table.to_dict("records")
    )


style.log_errors(snakemake)
calibrations = [read([Path(path).with_name("iterations.csv")]) for path in snakemake.input.layers]
table = pd.DataFrame(row_of(one) for one in calibrations if one["model"].iloc[0] in PAPER_BATCH)
caption = " ".join(snakemake.params.caption.split()) + f" {style.setting(table.drop(columns='rate_mbit'))}."
style.save_table(table, show(table), caption, snakemake.output)
