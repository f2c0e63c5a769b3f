"""Perplexity: the test perplexity of models of text at the end of training, and what a worker has sent for it.

Lower is better. Against uncompressed: the perplexity of the method divided by the perplexity of uncompressed with
the same seed; below 1, the method is better. Values are means over n seeds. Brackets: the smallest and the largest of
the seeds. A difference within these ranges ranks nothing. Best: the lowest test perplexity of each run, the epoch that
has it, and this perplexity divided by the lowest of uncompressed with the same seed. The best epoch is chosen on the
test set, so these perplexities are too low for all methods. If the best epoch is not the last, the method overfits, and
the end of training favours methods that learn more slowly. Loss: cross entropy per token, in nats. Sent: the bytes
that a worker handed to the engine in the whole training."""

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import last_points, over_seeds, with_uncompressed
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, Row

BEST = ["best_perplexity", "best_against", "best_epoch"]
VALUES = ["test_perplexity", "against", *BEST, "test_loss", "train_loss", "sent_bytes"]


def build(points: pd.DataFrame) -> pd.DataFrame:
    """The last point of every run of a model of text and its best epoch, averaged over seeds.

    ``against`` and ``best_against``: the perplexity divided by the perplexity of uncompressed with the same seed.
    """
    of_text = points[points["test_perplexity"].notna()]
    best = of_text.loc[of_text.groupby("run")["test_perplexity"].idxmin()]
    columns = {"test_perplexity": "best_perplexity", "epoch": "best_epoch"}
    last = last_points(of_text).join(best.set_index("run")[[*columns]].rename(columns=columns), on="run")
    for value, ratio in (("test_perplexity", "against"), ("best_perplexity", "best_against")):
        last[ratio] = last[value] / with_uncompressed(last, value, "model", "seed")["dense"]
    return over_seeds(last, VALUES)


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Test perplexity": tables.spread(row, "test_perplexity"),
            "Against uncompressed": _against(row, "against"),
            "Best perplexity": tables.spread(row, "best_perplexity"),
            "Best, against uncompressed": _against(row, "best_against"),
            "Best epoch": tables.spread(row, "best_epoch", digits=0),
            "Test loss": tables.spread(row, "test_loss", digits=3),
            "Training loss": tables.spread(row, "train_loss", digits=3),
            "Sent (MB)": tables.number(row["sent_bytes"] / 1e6),
            "Epochs": f"{row['epochs_trained']:.3g}",
            "n": row["seeds"],
        }
        for row in table.to_dict("records")
    )


def _against(row: Row, column: str) -> str:
    return "" if pd.isna(row[column]) else tables.spread(row, column, digits=3)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, points = Names.of(snakemake), pd.read_csv(snakemake.input.accuracy)
    table = names.arrange(build(points))
    caption = f"{captions.of_script(snakemake)} {captions.PERPLEXITY} {captions.setting(points)}."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
