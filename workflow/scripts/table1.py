"""Table 1: final training accuracy and training loss per model and variant, and test accuracy beside them.

Training values are means over the augmented batches of the last stretch of the curve, test values over the
test set after the last step. Over the same stretch: the density is the part of the entries that was sent; bits are
what a worker handed to the engine, for each entry of the gradient; vNMSE is E |aggregate - mean|^2 / E |mean|^2, the
mean being that of the workers' true gradients, in the last step of the stretch. Mean over seeds, with the standard
deviation where there are several. Kept run: a long run of the repository, shown for a model that was trained too
briefly here or not at all."""

import pandas as pd

from dlgs_bench.report import captions, kept, tables
from dlgs_bench.report.load_runs import ABOUT, LINKS, WHEN
from dlgs_bench.report.log import log_errors
from dlgs_bench.report.names import Names

VALUES = ["train_accuracy", "train_loss", "test_accuracy", "test_loss", "test_perplexity"]
VALUES += ["density", "bits_per_entry", "vnmse"]
# What a row is about: all that does not differ between seeds, and could make another number.
KEYS = [key for key in ABOUT if key not in ("run", "seed", "selection", *WHEN, *LINKS)]


def build(points: pd.DataFrame) -> pd.DataFrame:
    """The last point of every run, averaged over seeds: ``<value>`` and ``<value>_sd``."""
    last = points.sort_values("step", kind="stable").groupby(["run", "kept"], sort=False).tail(1)
    last = last.assign(vnmse=last["squared_error"] / last["squared_mean"])
    groups = last.groupby([*KEYS, "kept"], dropna=False, sort=False)
    table = groups[VALUES].mean().join(groups[VALUES].std(), rsuffix="_sd")
    table["epochs_trained"] = groups["epoch"].mean()
    table["seeds"] = groups.size()
    return table.reset_index().assign(rate_mbit=float("nan"))


def with_kept(points: pd.DataFrame, long: list[pd.DataFrame], names: Names) -> pd.DataFrame:
    """The points of this machine that are worth a row, and kept ones; column ``kept``: machine, day, commit."""
    found, ratios = [], set(points["ratio"].dropna())
    for model in names.models_in({*points["model"], *names.models}):
        own, kept_rows = kept.instead_of(points, long, model, ratios, names)
        found.append(own.assign(kept=""))
        if len(kept_rows):
            machine = kept_rows["machine"].map(lambda name: name.partition(",")[0])
            where = machine + kept_rows["date"].map("; {}".format) + kept_rows["commit"].map(", {}".format)
            found.append(kept_rows.assign(kept=where))
    every = pd.concat([one for one in found if len(one)], ignore_index=True)
    return every.reindex(columns=list(dict.fromkeys([*points.columns, *every.columns])))


def cell(row, value: str, scale: int) -> str:
    if pd.isna(row[value]):
        return ""
    digits = 1 if scale == 100 else 2
    text, sd = f"{row[value] * scale:.{digits}f}", row[f"{value}_sd"]
    return text if pd.isna(sd) else f"{text} ± {sd * scale:.{digits}f}"


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


log_errors(snakemake)
names = Names.of(snakemake)
points = with_kept(pd.read_csv(snakemake.input.accuracy), kept.read(snakemake.input.kept), names)
table = names.arrange(build(points))
caption = f"{captions.of_script(snakemake)} {captions.setting(table.drop(columns='rate_mbit'))}."
if table["test_perplexity"].notna().any():
    caption += " Test perplexity is the exponential of the test loss; a token is a byte."
short = names.models_in(row["model"] for row in table.to_dict("records") if captions.too_short(row))
if short:
    caption += f" Trained too short to rank the variants: {', '.join(map(names.model, short))}."
tables.save_table(table.drop(columns="rate_mbit"), shown(table, names), caption, snakemake.output)
