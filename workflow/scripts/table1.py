"""Table 1: final training accuracy and training loss per model and method, and test accuracy beside them.

Training values are means over the augmented batches of the last stretch of the curve, test values
over the test set after the last step. Mean over seeds, with the standard deviation where there are
several."""

import pandas as pd

from harness.report import style

VALUES = ["train_accuracy", "train_loss", "test_accuracy", "test_loss"]
KEYS = ["model", "method", "ratio", "data", "stand_in", "workers", "engine", "network", "machine"]


def build(points: pd.DataFrame) -> pd.DataFrame:
    """The last point of every run, averaged over seeds: ``<value>`` and ``<value>_sd``."""
    last = points.sort_values("step").groupby([*KEYS, "seed"], dropna=False, sort=False).tail(1)
    groups = last.groupby(KEYS, dropna=False, sort=False)
    table = groups[VALUES].mean().join(groups[VALUES].std(), rsuffix="_sd")
    table["epochs_trained"] = groups["epoch"].mean()
    table["seeds"] = groups.size()
    return style.arrange(table.reset_index())


def show(table: pd.DataFrame) -> pd.DataFrame:
    def cell(row, value, scale):
        text = f"{row[value] * scale:.{1 if scale == 100 else 2}f}"
        sd = row[f"{value}_sd"]
        return text if pd.isna(sd) else f"{text} ± {sd * scale:.{1 if scale == 100 else 2}f}"

    return pd.DataFrame(
        {
            **style.run_columns(row),
            "Training accuracy (%)": cell(row, "train_accuracy", 100),
            "Training loss": cell(row, "train_loss", 1),
            "Test accuracy (%)": cell(row, "test_accuracy", 100),
            "Epochs": f"{row['epochs_trained']:.3g}",
            "n": row["seeds"],
        }
        for row in table.to_dict("records")
    )


if __name__ == "__main__":
    style.log_errors(snakemake)
    table = build(pd.read_csv(snakemake.input.accuracy))
    caption = " ".join(snakemake.params.caption.split()) + " " + style.setting(table) + "."
    if table["epochs_trained"].max() < 20:
        caption += " These runs are too short to rank the methods."
    style.save_table(table, show(table), caption, snakemake.output)
