"""Table 1: final training accuracy, training loss and test accuracy per model and variant.

Training values: means over the augmented batches between the last two points of the curve. Test accuracy: over the
test set after the last step. Density, bits and vNMSE cover the same part of the training. Density: the part of the
entries that was sent. Bits an entry: the bits that a worker handed to the engine, per entry of the gradient. vNMSE:
E |aggregate - mean|^2 / E |mean|^2 in the last step, where mean is the mean of the workers' true gradients. Values
are means over n seeds. Brackets: the smallest and the largest of the seeds. Kept run: a long run that is kept in the
repository, shown with all its seeds and ratios for a model that was trained too briefly here or not at all. More
runs are in results/reference-long-training/README.md."""

import pandas as pd

from dlgs_bench.report import captions, kept, tables
from dlgs_bench.report.load_runs import WHERE, last_points, over_seeds
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, Row

VALUES = ["train_accuracy", "train_loss", "test_accuracy", "test_loss", "test_perplexity"]
VALUES += ["density", "bits_per_entry", "vnmse"]


def build(points: pd.DataFrame) -> pd.DataFrame:
    """The last point of every run, averaged over seeds."""
    last = last_points(points, "kept")
    last = last.assign(vnmse=last["squared_error"] / last["squared_mean"], is_kept=last["kept"] != "")
    return over_seeds(last, VALUES, "is_kept", joined=(*WHERE, "kept")).drop(columns="is_kept").fillna({"kept": ""})


def with_kept(points: pd.DataFrame, long: list[pd.DataFrame], names: Names) -> pd.DataFrame:
    """The points of this machine that get a row, and points of kept runs; column ``kept``: machine, day, commit."""
    parts, ratios = [], set(points["ratio"].dropna())
    for model in names.models_in({*points["model"], *names.models}):
        own, kept_rows = kept.instead_of(points, long, model, ratios, names)
        parts.append(own.assign(kept=""))
        if len(kept_rows):
            machine = kept_rows["machine"].map(lambda name: name.partition(",")[0])
            where = machine + kept_rows["date"].map("; {}".format) + kept_rows["commit"].map(", {}".format)
            parts.append(kept_rows.assign(kept=where))
    every = pd.concat([one for one in parts if len(one)], ignore_index=True)
    return every.reindex(columns=list(dict.fromkeys([*points.columns, *every.columns])))


def cell(row: Row, value: str, scale: int) -> str:
    return "" if pd.isna(row[value]) else tables.spread(row, value, scale, 1 if scale == 100 else 2)


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Training accuracy (%)": cell(row, "train_accuracy", 100),
            "Training loss": cell(row, "train_loss", 1),
            "Test accuracy (%)": cell(row, "test_accuracy", 100),
            "Test perplexity": cell(row, "test_perplexity", 1),
            "Density": tables.number(row["density"]),
            "Bits an entry": tables.number(row["bits_per_entry"]),
            "vNMSE": tables.error(row["vnmse"]),
            "Epochs": f"{row['epochs_trained']:.3g}",
            "n": row["seeds"],
            "Kept run": row["kept"],
        }
        for row in table.to_dict("records")
    )


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    points = with_kept(pd.read_csv(snakemake.input.accuracy), kept.read(snakemake.input.kept), names)
    table = names.arrange(build(points))
    own = points[points["kept"] == ""]  # the column "Kept run" describes the others
    caption = f"{captions.of_script(snakemake)} {captions.setting(own if len(own) else points)}."
    if table["test_perplexity"].notna().any():
        caption += f" {captions.PERPLEXITY}"
    short = names.models_in(row["model"] for row in table.to_dict("records") if captions.too_short(row))
    if short:
        caption += f" Trained too short to rank the variants: {', '.join(map(names.model, short))}."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
