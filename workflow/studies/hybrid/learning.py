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

COLUMNS = ["title", "model", "way", "step", "train_loss", "train_accuracy", "samples", "seed", "data_title", "stand_in"]
COLUMNS += ["machine", "network", "engine", "workers", "date", "commit"]


def since_previous(learnt: pd.DataFrame, steps: list[int]) -> pd.DataFrame:
    """The means of the columns of ``learnt`` over the steps after the previous one of ``steps``, one row per step."""
    ends = pd.cut(learnt["step"], [0, *steps], labels=steps).astype(int)
    return learnt.drop(columns="step").groupby(ends).mean().rename_axis("step").reset_index()


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    points = read(snakemake.input.parallel)
    steps = sorted(set(points["step"]))
    hybrids = [
        since_previous(pd.read_csv(path), steps).assign(way="hybrid", **run_metadata(Path(path).parent))
        for path in snakemake.input.hybrid
    ]
    table = pd.concat([points.assign(way="data-parallel"), *hybrids], ignore_index=True)
    first = points.iloc[0]
    title, samples = plugins.describe("models", first["model"])["title"], first["batch"] * first["workers"]
    table = table.assign(title=title, samples=samples)
    cells = pd.DataFrame(
        {
            "Model": title,
            "Way": row["way"],
            "Seed": row["seed"],
            "Step": row["step"],
            "Training loss": f"{row['train_loss']:.4f}",
            "Training accuracy (%)": f"{100 * row['train_accuracy']:.2f}",
        }
        for row in table.to_dict("records")
    )
    caption = f"{captions.of_script(snakemake)} Data: {data_title(first)}; {samples} samples in a step. "
    caption += f"{captions.setting(table)}; {captions.number_of_seeds(table)}."
    tables.save_table(table[COLUMNS], cells, caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
