"""Published and measured here: the test accuracy that Top-K and random-k lose, with and without error feedback.

Published: GRACE's raw data (Xu et al., ICDCS 2021), ResNet-20 v2, the best test accuracy of 328 epochs, one seed.
Measured: after the last step. Gaps are differences to uncompressed with the same optimizer: SGD with momentum for
Top-K, without momentum for random-k. After ±: twice the standard error of a test set of this size; accuracies that
differ by less count as equal. Direction: whether the measured gap has the sign of the published gap. Order: how often
both agree which of two rows of the same method is better."""

from collections import Counter

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import read
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import data_title

TEST_SET = 10_000  # images of CIFAR-10's
KEYS = ["variant", "ratio"]
METHODS = {"none": "uncompressed", "topk": "Top-K", "randomk": "random-k"}
SOURCES = ("published", "measured")
VERDICTS = ("agrees", "contradicts", "cannot be told")


def difference(a: dict, b: dict, who: str) -> tuple[float, float]:
    """The accuracy of row ``a`` minus the accuracy of row ``b``, and twice the standard error of the difference."""
    p, q = (row[f"{who}_accuracy"] for row in (a, b))
    return p - q, 2 * ((p * (1 - p) + q * (1 - q)) / a[f"{who}_samples"]) ** 0.5


def verdict(a: dict, b: dict) -> str:
    """Whether the measured difference has the sign of the published one; empty if the published is 0."""
    differences = (difference(a, b, who) for who in SOURCES)
    published, measured = (0 if abs(value) <= error else value for value, error in differences)
    if not published:
        return ""
    if not measured:
        return "cannot be told"
    return "agrees" if (published > 0) == (measured > 0) else "contradicts"


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the gaps to uncompressed, ``direction``, and the number of other rows with each verdict."""
    rows = table.to_dict("records")
    for row in rows:
        alike = [other for other in rows if other["optimizer"] == row["optimizer"] and other is not row]
        if row["method"] == "none":
            continue
        dense = next(other for other in alike if other["method"] == "none")
        for who in SOURCES:
            row[f"{who}_gap"], row[f"{who}_error"] = difference(row, dense, who)
        row["direction"] = verdict(row, dense)
        counts = Counter(verdict(row, other) for other in alike if other is not dense)
        row |= {name: counts[name] for name in VERDICTS}
    return pd.DataFrame(rows)


def shown(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Method": METHODS[row["method"]],
            "Error feedback": {True: "yes", False: "no"}.get(row["error_feedback"], ""),
            "Ratio": "" if pd.isna(row["ratio"]) else f"{row['ratio']:g}",
            "Published (%)": f"{row['published_accuracy'] * 100:.2f}",
            "Published gap": gap(row, "published"),
            "Measured (%)": f"{row['measured_accuracy'] * 100:.2f}" + deviation(row["measured_sd"]),
            "Measured gap": gap(row, "measured"),
            "Direction": "" if row["method"] == "none" else row["direction"] or "no gap published",
            "Order": order(row),
        }
        for row in table.to_dict("records")
    )


def gap(row: dict, who: str) -> str:
    return "" if row["method"] == "none" else f"{row[f'{who}_gap'] * 100:+.2f} ± {row[f'{who}_error'] * 100:.2f}"


def deviation(sd: float) -> str:
    return "" if pd.isna(sd) else f" ± {sd * 100:.2f}"


def order(row: dict) -> str:
    return "" if row["method"] == "none" else ", ".join(f"{row[name]:.0f} {name}" for name in VERDICTS if row[name])


def caption(snakemake: Script, table: pd.DataFrame, points: pd.DataFrame) -> str:
    """The caption with the verdicts and the length of the training."""
    first, rows = points.iloc[0], table[table["method"] != "none"]
    directions = ", ".join(f"{name} {(rows['direction'] == name).sum()}" for name in VERDICTS)
    pairs = ", ".join(f"{name} {rows[name].sum() // 2:.0f}" for name in VERDICTS)
    words = f"{captions.of_script(snakemake)} Directions: {directions}. Pairs in order: {pairs}. "
    words += (
        f"Measured: {data_title(first)}, {points['step'].max()} steps of {first['workers']} x {first['batch']} samples"
    )
    return f"{words}; {captions.setting(points)}; {captions.seeds(points)}."


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    published, points = pd.read_csv(snakemake.input.published), read(snakemake.input.points)
    measured = points.groupby(KEYS, dropna=False)["test_accuracy"].agg(["mean", "std"]).reset_index()
    measured.columns = [*KEYS, "measured_accuracy", "measured_sd"]
    table = published.assign(published_accuracy=published.pop("top1") / 100, published_samples=TEST_SET)
    table = judged(table.merge(measured, on=KEYS).assign(measured_samples=min(TEST_SET, snakemake.params.test_samples)))
    tables.save_table(table, shown(table), caption(snakemake, table, points), snakemake.output)


if __name__ == "__main__":
    main(snakemake)
