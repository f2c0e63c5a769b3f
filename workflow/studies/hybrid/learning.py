"""Hybrid parallelism and data-parallel training that learn from the same samples, with equal weights at the start.

Both have the same number of workers with a backbone, and the same batches. Training loss and accuracy are means over
the steps since the previous row. The two differ only by the order in which float32 numbers are added. Training enlarges
such a difference from step to step."""

from pathlib import Path

import pandas as pd

from dlgs_bench import plugins
from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import read, run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import data_title

COLUMNS = ["title", "model", "way", "step", "train_loss", "train_accuracy", "samples"]


def since_previous(learnt: pd.DataFrame, steps: list[int]) -> pd.DataFrame:
    """The means of the columns of ``learnt`` over the steps after the previous one of ``steps``, one row per step."""
    rows = learnt[learnt["step"] <= steps[-1]]
    ends = pd.cut(rows["step"], [0, *steps], labels=steps).astype(int)
    return rows.drop(columns="step").groupby(ends).mean().rename_axis("step").reset_index()


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    points = read(snakemake.input.parallel).assign(way="data-parallel")
    rows = []
    for path, (_, own) in zip(map(Path, snakemake.input.hybrid), points.groupby("run", sort=False), strict=True):
        learnt = since_previous(pd.read_csv(path), list(own["step"]))
        rows += [own, learnt.assign(**run_metadata(path.parent), way="hybrid")]
    table = pd.concat(rows, ignore_index=True)
    parallel = table[table["way"] == "data-parallel"].set_index("model")
    table["samples"] = table["model"].map((parallel["batch"] * parallel["workers"]).groupby("model").first())
    table["title"] = table["model"].map(lambda model: plugins.describe("models", model)["title"])
    cells = pd.DataFrame(
        {
            "Model": row["title"],
            "Way": row["way"],
            "Step": row["step"],
            "Training loss": f"{row['train_loss']:.4f}",
            "Training accuracy (%)": f"{100 * row['train_accuracy']:.2f}",
        }
        for row in table.to_dict("records")
    )
    data = ", ".join(sorted(set(map(data_title, table.to_dict("records")))))
    each = ", ".join(f"{n}" for n in sorted(table["samples"].unique()))
    caption = f"{captions.of_script(snakemake)} Data: {data}; {each} samples in a step. {captions.setting(table)}."
    keys = [*COLUMNS, "seed", "data_title", "stand_in", "machine", "network", "engine", "workers", "date", "commit"]
    tables.save_table(table[keys], cells, caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
