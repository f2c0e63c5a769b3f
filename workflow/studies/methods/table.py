"""Methods: what each method sends, its error, its accuracy and its time, compared with 32 bits and 16 bits per entry.

Bits an entry: the bits that a worker hands to the engine, per entry of the gradient. vNMSE: E |aggregate - mean|^2 / E
|mean|^2, where mean is the mean of the workers' true gradients, in the steps of the curve's points. Methods with their
own momentum return updates, which cannot be compared with a mean of gradients; their cells are empty. Test accuracy:
at a constant learning rate, after all steps and at the point where a worker has sent the named bytes (brackets: what
it sent, if less). Time to an accuracy: the number of steps until then, interpolated between the curve's points, times
the iteration measured at each rate. Score: the methods are ranked by these times. At each rate, a method gets 1 if it
is the fastest, 0 if it takes at least 4 times as long or never reaches the accuracy, and a value on the straight line
between them otherwise; the score is the mean over the rates. Speed-ups are against uncompressed and against the
baseline in the same blocks. Brackets: the 95 % interval of a repeat, from the blocks of one run (Student's t).
Computing: the part of an iteration that is forward or backward."""

import math
from typing import Any

import numpy as np
import pandas as pd

from dlgs_bench.report import captions, curves, tables
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, Row
from dlgs_bench.report.ranking import TO_TARGET, scores
from dlgs_bench.report.summary import compare_blocks, summarise

TIMED = ("iteration_s", "speedup", "against", "computing", "density", "sent_bytes", "blocks")


def learnt(points: pd.DataFrame, budget: float) -> dict:
    """The row of one variant from its accuracy runs, one per seed."""
    runs = [run for _, run in points.groupby("run", sort=False)]
    values = ["step", "test_accuracy", "sent_bytes"]
    ends = pd.DataFrame([run.iloc[-1][values] for run in runs]).astype(float)
    spent = pd.DataFrame([curves.at_bytes(run, budget)[values] for run in runs]).astype(float)
    steps = [np.diff(run["step"], prepend=0) for run in runs]
    weighed = {
        column: np.mean([np.average(run[column], weights=n) for run, n in zip(runs, steps, strict=True)])
        for column in ("bits_per_entry", "density")
    }
    errors, means = (points[column].sum(min_count=1) for column in ("squared_error", "squared_mean"))
    row = {key: points.iloc[0][key] for key in ("variant", "ratio")} | weighed | {"vnmse": errors / means}
    for name, rows in (("accuracy", ends), ("accuracy_at_bytes", spent)):
        row |= {name: rows["test_accuracy"].mean(), f"{name}_sd": rows["test_accuracy"].std()}
    return row | {"seeds": len(runs), "steps": int(ends["step"].iloc[0]), "sent_mb": spent["sent_bytes"].mean() / 1e6}


def times(rates: pd.DataFrame, points: pd.DataFrame, target: float) -> dict[str, float]:
    """The seconds of one variant to the target accuracy at each rate; the rate is "nan" on the host's network."""
    steps = curves.steps_to(curves.mean(points), target)
    return {f"{TO_TARGET}{row.rate_mbit:g}": steps * row.iteration_s for row in summarise(rates).itertuples()}


def timed(timing: pd.DataFrame, model: str, baseline: str) -> pd.DataFrame:
    """One row per variant from the timing runs of one model, in columns named after the model."""
    runs = timing[timing["model"] == model]
    against = {}
    for variant, rows in runs.groupby("variant"):
        row = compare_blocks(rows[rows["timed"] == variant], rows[rows["timed"] == baseline])
        against[variant] = {f"against{end}": row[f"speedup{end}"] for end in ("", "_low", "_high")}
    table = summarise(runs).set_index("variant").join(pd.DataFrame.from_dict(against, orient="index"))
    return table[[column for column in table if column.startswith(TIMED)]].add_prefix(f"{model}_")


def percent(row: Row, name: str) -> str:
    sd = row[f"{name}_sd"] * 100
    return f"{row[name] * 100:.1f}" + ("" if pd.isna(sd) else f" ± {sd:.1f}")


def seconds(value: float) -> str:
    return "never" if math.isinf(value) else tables.number(value)


def of_training(row: Row, names: Names, params: Any) -> dict[str, str]:
    """The cells about accuracy runs."""
    sent = "" if row["sent_mb"] >= params.megabytes else f" ({tables.number(row['sent_mb'])} MB)"
    ends = [column for column in row if column.startswith(TO_TARGET)]
    rates = ", ".join(column.removeprefix(TO_TARGET) for column in ends)
    at = "" if rates == "nan" else f" at {rates} Mb/s"
    return {
        "Method": names.variant(row["variant"]),
        "Ratio": "" if pd.isna(row["ratio"]) else f"{row['ratio']:g}",
        "Bits an entry": tables.number(row["bits_per_entry"]),
        "Density": tables.number(row["density"]),
        "vNMSE": tables.error(row["vnmse"]),
        f"Accuracy after {row['steps']} steps (%)": percent(row, "accuracy"),
        f"Accuracy after {params.megabytes:g} MB (%)": percent(row, "accuracy_at_bytes") + sent,
        f"To {params.target * 100:.0f} %{at} (s)": ", ".join(seconds(row[end]) for end in ends),
        "Score": f"{row['score']:.2f}",
    }


def of_timing(row: Row, names: Names, model: str, baseline: str) -> dict[str, str]:
    """The cells about the timing runs of one model."""
    title = names.model(model)
    return {
        f"{title} (ms)": tables.spread(row, f"{model}_iteration_s", 1e3, 0),
        f"{title}, against {names.variant('none')}": tables.spread(row, f"{model}_speedup"),
        f"{title}, against {names.variant(baseline)}": tables.spread(row, f"{model}_against"),
        f"{title}, computing (%)": f"{row[f'{model}_computing'] * 100:.0f}",
    }


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, params = Names.of(snakemake), snakemake.params
    points, timing, rates = map(pd.read_csv, (snakemake.input.accuracy, snakemake.input.timing, snakemake.input.rates))
    rows = []
    for variant in names.variants_in(points["variant"]):
        own = points[points["variant"] == variant]
        seconds_to = times(rates[rates["variant"] == variant], own, params.target)
        rows.append(learnt(own, 1e6 * params.megabytes) | seconds_to)
    table, models = pd.DataFrame(rows), names.models_in(timing["model"])
    table["score"] = scores(table)
    table = table.sort_values("score", ascending=False, kind="stable")
    for model in models:
        table = table.join(timed(timing, model, params.baseline), on="variant")
    cells = pd.DataFrame(
        of_training(row, names, params)
        | {k: v for model in models for k, v in of_timing(row, names, model, params.baseline).items()}
        for row in table.to_dict("records")
    )
    first, every = names.model(points["model"].iloc[0]), pd.concat([timing, rates])
    blocks = captions.least_to_most(summarise(every)["blocks"])
    caption = f"{captions.of_script(snakemake)} Trained: {first}, {captions.setting(points)}; {captions.seeds(points)}."
    caption += f" Timed: {captions.setting(every)}; n = {blocks} blocks."
    tables.save_table(table, cells, caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
