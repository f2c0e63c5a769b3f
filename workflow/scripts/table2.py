"""Table 2: the time of one iteration, of one epoch and of the whole training per model, method and ratio.

An iteration's time is the median of each phase (refresh, reuse, ...), weighted by how often the phase
comes in a cycle; an epoch's and the training's time follow from it. Speed-up is against
uncompressed in the same processes, in turns: the median over blocks. Ranges are the smallest and the
largest block."""

import pandas as pd

from harness.report import style
from harness.report.summary import summarise


def show(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **style.run_columns(row),
            "Iteration (ms)": style.spread(row, "iteration_s", 1e3, 0),
            "Epoch (s)": style.number(row["epoch_s"]),
            "Training (h)": style.number(row["training_s"] / 3600),
            "Speed-up": style.spread(row, "speedup"),
            "Sent (MB)": style.number(row["sent_bytes"] / 1e6),
            "Density": style.number(row["density"]),
            "n": row["iterations"],
        }
        for row in table.to_dict("records")
    )


def build(snakemake) -> None:
    style.log_errors(snakemake)
    table = style.arrange(summarise(pd.read_csv(snakemake.input.timing)))
    caption = " ".join(snakemake.params.caption.split())
    caption += f" {style.setting(table)}. n counts the method's timed iterations."
    style.save_table(table, show(table), caption, snakemake.output)


if __name__ == "__main__":
    build(snakemake)
