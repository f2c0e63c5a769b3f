"""Alternating sparse and dense: T sparse steps, then one dense step, compared at equal bytes and at equal steps.

A sparse step sends the k largest entries of gradient + residual of each layer, as values and indices of 32 bits each. A
dense step sends all entries, so the residual becomes zero. T = 0 is plain SGD; "never dense" is a Top-K of each layer
with error feedback, like LAGS. Learning rates are constant. Best: each T counts with the learning rate of the lowest
training loss. Accuracy: mean over seeds; brackets: the smallest and the largest value."""

import pandas as pd

from dlgs_bench.paper.systems import at_best_rate, comparable, never_dense
from dlgs_bench.report import captions, tables
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title


def at_the_end(points: pd.DataFrame) -> pd.DataFrame:
    """A row for each T and learning rate, from the last points of its runs."""
    points = comparable(points)
    last, best = points[points["step"] == points["train_steps"]], set(at_best_rate(points)["run"])
    summary = []
    for (equal, sparse_steps, lr), rows in last.groupby(["equal", "sparse_steps", "lr"], dropna=False):
        accuracy, steps = rows["test_accuracy"], int(rows["train_steps"].iloc[0])
        summary.append(
            {"equal": equal, "sparse_steps": sparse_steps, "lr": lr, "best": set(rows["run"]) <= best}
            | {"steps": steps, "dense_steps": steps // (sparse_steps + 1)}
            | {"sent_bytes": rows["sent_bytes"].mean(), "epoch": rows["epoch"].iloc[0]}
            | {"test_accuracy": accuracy.mean(), "test_accuracy_low": accuracy.min()}
            | {"test_accuracy_high": accuracy.max(), "train_loss": rows["train_loss"].mean(), "seeds": len(rows)}
        )  # fmt: skip
    return pd.DataFrame(summary)


def shown(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Equal": row["equal"],
            "T": "never dense" if never_dense(row["sparse_steps"]) else row["sparse_steps"],
            "Learning rate": "" if pd.isna(row["lr"]) else f"{row['lr']:g}",
            "Best": "yes" if row["best"] else "",
            "Steps": row["steps"],
            "Dense steps": row["dense_steps"],
            "Epochs": tables.number(row["epoch"]),
            "Sent (MB)": tables.number(row["sent_bytes"] / 1e6),
            "Test accuracy (%)": tables.spread(row, "test_accuracy", 100, 1),
            "Training loss": tables.number(row["train_loss"]),
            "n": row["seeds"],
        }
        for row in table.to_dict("records")
    )


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    points = pd.read_csv(snakemake.input.points)
    table, first = at_the_end(points), points.iloc[0]
    what = f"{Names.of(snakemake).model(first['model'])}, {data_title(first)}, ratio {first['ratio']:g}"
    caption = f"{captions.of_script(snakemake)} {what}; {captions.setting(points)}. n counts seeds."
    tables.save_table(table, shown(table), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
