"""Write dlgs_bench/timemodel/trained.csv: how well methods learnt in the kept runs, which `dlgs-bench advise` shows.

python setup/trained.py

For each method with its default parameters, each ratio and each model: the longest run, and uncompressed in the same
table.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import pandas as pd  # noqa: E402

from dlgs_bench import plugins  # noqa: E402
from dlgs_bench.atomic_file import write_atomically  # noqa: E402
from dlgs_bench.timemodel.trained import ACCURACY, PERPLEXITY, TABLE  # noqa: E402

RESULTS = ROOT / "results"
KEYS = ["variant", "ratio"]
COLUMNS = ["method", "ratio", "model", "measure", "epochs", "value", "uncompressed", "seeds"]
STEPS = 782  # of an epoch of CIFAR-10 with 2 workers and 32 images each
LONG = ["table1.csv", "ratio-0.1/table1.csv"]  # of the long training
TITLES = {"resnet20": "ResNet-20", "vgg16": "VGG16", "transformer_small": "small transformer"}


def kept() -> Iterator[pd.DataFrame]:
    """The kept tables with the columns variant, ratio, model, measure, epochs, value and seeds."""
    for name in LONG:
        table = pd.read_csv(RESULTS / "reference-long-training" / name)
        yield table.assign(measure=ACCURACY, epochs=table["epochs_trained"], value=100 * table["test_accuracy"])
    table = pd.read_csv(RESULTS / "reference-methods" / "methods.csv")
    yield table.assign(model="resnet20", measure=ACCURACY, epochs=table["steps"] / STEPS, value=100 * table["accuracy"])
    table = pd.read_csv(RESULTS / "reference-published" / "published.csv")
    table = table[table["measured_accuracy"].notna() & (table["optimizer"] == "momentum")].drop_duplicates(KEYS)
    table = table.assign(model="resnet20", measure=ACCURACY, epochs=table["measured_epochs"])
    yield table.assign(value=100 * table["measured_accuracy"], seeds=table["measured_seeds"].astype(int))
    table = pd.read_csv(RESULTS / "reference-language-model" / "perplexity.csv")
    yield table.assign(measure=PERPLEXITY, epochs=table["epochs_trained"], value=table["best_perplexity"])


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of methods with default parameters, each next to uncompressed of the same model."""
    dense = table[table["variant"] == "none"].set_index("model")["value"]
    rows = table[table["variant"].isin(set(plugins.names("methods")) - {"none"})]
    rows = rows.assign(method=rows["variant"], uncompressed=rows["model"].map(dense))
    return rows.assign(model=rows["model"].map(TITLES))[COLUMNS]


def text() -> str:
    """The table as CSV."""
    rows = pd.concat([compared(table) for table in kept()]).sort_values(COLUMNS)
    longest = rows.groupby(COLUMNS[:3], dropna=False).tail(1)
    return longest.to_csv(index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    write_atomically(TABLE, text().encode())
