"""Published and measured here: the test accuracy that compression costs, from four sources.

A gap is the difference to the uncompressed run of the same source, model and optimizer (SGD with momentum, or plain
SGD). Accuracies of two sources are never compared. After ±: twice the standard error of a difference, from the number
of test images and, if there are several seeds, from how much they differ. Differences that are smaller count as 0.
Sent: by one worker in the whole training. Direction: whether the measured gap has the sign of the published gap. Order:
how often both agree which of two rows of a source, model and optimizer is better. GRACE published the accuracy of the
best epoch. Measured accuracies are of the last step. The columns note and not_measured of the CSV file contain what
differs from the source."""

from collections import Counter

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import read
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Row, data_title

TEST_SET = 10_000  # images of CIFAR-10's
KEYS = ["variant", "ratio"]
GROUP = ["source", "model", "optimizer"]  # only rows of one group are compared
SOURCES = ("published", "measured")
VERDICTS = ("agrees", "contradicts", "cannot be told")
UNCOMPRESSED = "none"


def variance(row: Row, who: str) -> float:
    """The variance of an accuracy: of the test set's images and, if there are several seeds, of their mean."""
    accuracy, sd = row[f"{who}_accuracy"], row.get(f"{who}_sd")
    between = 0.0 if sd is None or pd.isna(sd) else sd**2 / row[f"{who}_seeds"]
    return accuracy * (1 - accuracy) / row[f"{who}_samples"] + between


def difference(a: Row, b: Row, who: str) -> tuple[float, float]:
    """The accuracy of row ``a`` minus the accuracy of row ``b``, and twice the standard error of the difference."""
    return a[f"{who}_accuracy"] - b[f"{who}_accuracy"], 2 * (variance(a, who) + variance(b, who)) ** 0.5


def verdict(a: Row, b: Row) -> str:
    """Whether the measured difference has the sign of the published one; empty if one of them is 0 or missing."""
    differences = (difference(a, b, who) for who in SOURCES)
    published, measured = (0 if abs(value) <= error else value for value, error in differences)
    if not published or pd.isna(measured):
        return ""
    if not measured:
        return "cannot be told"
    return "agrees" if (published > 0) == (measured > 0) else "contradicts"


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """The table with labels, gaps to uncompressed, ``direction``, and how many other rows have each verdict."""
    rows = table.to_dict("records")
    for row in rows:
        row["label"] = label(row)
        if row["method"] == UNCOMPRESSED:
            continue
        alike = [other for other in rows if other is not row and all(other[key] == row[key] for key in GROUP)]
        others = [other for other in alike if other["method"] != UNCOMPRESSED]
        for dense in [other for other in alike if other["method"] == UNCOMPRESSED]:
            for who in SOURCES:
                row[f"{who}_gap"], row[f"{who}_error"] = difference(row, dense, who)
            row["direction"] = verdict(row, dense)
        counts = Counter(verdict(row, other) for other in others)
        row |= {name: counts[name] for name in VERDICTS}
    return pd.DataFrame(rows)


def label(row: Row) -> str:
    """The method of a row with its ratio and error feedback."""
    ratio = "" if pd.isna(row["ratio"]) else f" {row['ratio']:g}"
    return row["title"] + ratio + {True: ", with feedback", False: ", no feedback"}.get(row["error_feedback"], "")


def shown(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Source": row["source"].partition(":")[0],
            "Model and data": f"{row['model']}, {row['data']}",
            "Workers": whole(row["workers"]),
            "Epochs": whole(row["epochs"]),
            "Optimizer": {"momentum": "momentum", "plain": "plain SGD"}[row["optimizer"]],
            "Method": row["label"],
            "Published (%)": f"{row['published_accuracy'] * 100:.2f}",
            "Published gap": gap(row, "published"),
            "Measured (%)": percent(row),
            "Measured gap": gap(row, "measured"),
            "Sent (MB)": "" if pd.isna(row["measured_sent_bytes"]) else f"{row['measured_sent_bytes'] / 1e6:,.0f}",
            "Direction": direction(row),
            "Order": ", ".join(f"{row[name]:.0f} {name}" for name in VERDICTS if row[name] > 0),
        }
        for row in table.to_dict("records")
    )


def whole(value: float) -> str:
    return "not stated" if pd.isna(value) else f"{value:.0f}"


def gap(row: Row, who: str) -> str:
    value, error = (row[f"{who}_{end}"] * 100 for end in ("gap", "error"))
    return "" if pd.isna(value) else f"{value:+.2f} ± {error:.2f}"


def percent(row: Row) -> str:
    if pd.isna(row["measured_accuracy"]):
        return "not measured"
    sd = row["measured_sd"] * 100
    return f"{row['measured_accuracy'] * 100:.2f}" + ("" if pd.isna(sd) else f" ± {sd:.2f}")


def direction(row: Row) -> str:
    if pd.isna(row["measured_accuracy"]):
        return "not measured here" + ("" if pd.isna(row["not_measured"]) else f": {row['not_measured']}")
    if row["method"] == UNCOMPRESSED:
        return ""
    if pd.isna(row["published_gap"]):
        return "no uncompressed run published"
    return row["direction"] or "no gap published"


def caption(snakemake: Script, table: pd.DataFrame, points: pd.DataFrame) -> str:
    """The caption with the verdicts, what these runs can show, and the length of the training."""
    first, rows = points.iloc[0], table[table["measured_gap"].notna()]
    directions = ", ".join(f"{name} {(rows['direction'] == name).sum()}" for name in VERDICTS)
    pairs = ", ".join(f"{name} {rows[name].sum() // 2:.0f}" for name in VERDICTS)
    words = f"{captions.of_script(snakemake)} Directions: {directions}. Pairs in order: {pairs}. "
    seeds, limit = points["seed"].nunique(), rows["measured_error"].max() * 100
    words += f"{seeds} seeds show gaps" if seeds > 1 else "One seed shows gaps"
    large = rows.loc[rows["published_gap"].abs() > rows["measured_error"], "label"]
    words += f" of more than {limit:.1f} points. Published gaps as large as that: {'; '.join(large) or 'none'}. "
    if seeds == 1:
        words += "One seed does not show how much seeds differ, so a gap near this limit needs more seeds. "
    words += (
        f"Measured: {data_title(first)}, {points['step'].max()} steps of {first['workers']} x {first['batch']} samples"
    )
    return f"{words}; {captions.setting(points)}; {captions.seeds(points)}."


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    published, points = pd.read_csv(snakemake.input.published), read(snakemake.input.points)
    measured = (
        points.groupby(KEYS, dropna=False)
        .agg(
            measured_accuracy=("test_accuracy", "mean"),
            measured_sd=("test_accuracy", "std"),
            measured_seeds=("test_accuracy", "count"),
            measured_epochs=("train_epochs", "first"),
            measured_sent_bytes=("sent_bytes", "mean"),
        )
        .reset_index()
    )
    samples = min(TEST_SET, snakemake.params.test_samples)
    table = published.rename(columns={"seeds": "published_seeds", "test_samples": "published_samples"})
    table = table.assign(published_accuracy=table.pop("top1") / 100).merge(measured, on=KEYS, how="left")
    table = judged(table.assign(measured_samples=samples))
    tables.save_table(table, shown(table), caption(snakemake, table, points), snakemake.output)


if __name__ == "__main__":
    main(snakemake)
