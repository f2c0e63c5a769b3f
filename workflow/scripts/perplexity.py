"""Perplexity: the test perplexity of models of text at the end of training, and what a worker has sent for it.

Lower is better. Against uncompressed: the perplexity of the method divided by the perplexity of uncompressed with
the same seed; below 1, the method is better. Values are means over n seeds. Brackets: the smallest and the largest of
the seeds. A difference within these ranges ranks nothing. Loss: cross entropy per token, in nats. Sent: the bytes that
a worker handed to the engine in the whole training."""

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import last_points, over_seeds, with_uncompressed
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names

VALUES = ["test_perplexity", "against", "test_loss", "train_loss", "sent_bytes"]


def build(points: pd.DataFrame) -> pd.DataFrame:
    """The last point of every run of a model of text, averaged over seeds.

    ``against``: the perplexity divided by the perplexity of uncompressed with the same seed.
    """
    last = last_points(points[points["test_perplexity"].notna()])
    last = with_uncompressed(last, "test_perplexity", "model", "seed")
    return over_seeds(last.assign(against=last["test_perplexity"] / last["dense"]), VALUES)


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Test perplexity": tables.spread(row, "test_perplexity"),
            "Against uncompressed": "" if pd.isna(row["against"]) else tables.spread(row, "against", digits=3),
            "Test loss": tables.spread(row, "test_loss", digits=3),
            "Training loss": tables.spread(row, "train_loss", digits=3),
            "Sent (MB)": tables.number(row["sent_bytes"] / 1e6),
            "Epochs": f"{row['epochs_trained']:.3g}",
            "n": row["seeds"],
        }
        for row in table.to_dict("records")
    )


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, points = Names.of(snakemake), pd.read_csv(snakemake.input.accuracy)
    table = names.arrange(build(points).assign(rate_mbit=float("nan")))
    caption = f"{captions.of_script(snakemake)} {captions.PERPLEXITY} {captions.setting(points)}."
    tables.save_table(table.drop(columns="rate_mbit"), shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
