"""Methods: what each method sends, its error, its accuracy and its time, compared with 32 bits and 16 bits per entry.

Bits an entry: the bits that a worker hands to the engine, per entry of the gradient. vNMSE: E |aggregate - mean|^2 / E
|mean|^2, where mean is the mean of the workers' true gradients, in the steps of the curve's points. Methods with their
own momentum return updates, which cannot be compared with a mean of gradients; their cells are empty. Test accuracy:
at a constant learning rate, after all steps and at the point where a worker has sent the named bytes (brackets: what
it sent, if less). Time to an accuracy: the number of steps until then, interpolated between the curve's points, times
the iteration measured at each rate. Score: the methods are ranked by these times. At each rate, a method gets 1 if it
is the fastest, 0 if it takes at least 4 times as long or never reaches the accuracy, and a value on the straight line
between them otherwise; the score is the mean over the rates. Brackets of a score hold 95 % of 1,000 scores for which
the seeds of each method were drawn again with replacement (two of three; a single seed stays) and each accuracy
(binomial, over the test samples of its point); they do not contain the noise of times. Sooner: the percentage of these
draws in which the method reaches the accuracy sooner than uncompressed. Speed-ups are against uncompressed and against
the baseline in the same blocks. Brackets: the 95 % interval of a repeat, from the blocks of one run (Student's t).
Computing: the part of an iteration that is forward or backward."""

import math
from typing import Any

import numpy as np
import pandas as pd

from dlgs_bench.report import captions, curves, tables
from dlgs_bench.report.load_runs import by_block
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, Row
from dlgs_bench.report.ranking import SOONER, TO_TARGET, resampled, scores
from dlgs_bench.report.summary import columns, summarise
from dlgs_bench.stats import repeatable

DRAWS = 1000
AT_TARGET = "score_at_"  # begins the names of columns of scores with another target; the target in percent follows
OTHER_TARGET = 0.05  # scores are also computed for targets that differ by this accuracy
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


def seconds_per_step(rates: pd.DataFrame) -> dict[str, float]:
    """The seconds of one variant's step at each rate; the rate is "nan" on the host's network."""
    return {f"{TO_TARGET}{row.rate_mbit:g}": row.iteration_s for row in summarise(rates).itertuples()}


def ranked(points: list[pd.DataFrame], per_step: pd.DataFrame, params: Any) -> pd.DataFrame:
    """The times to the target, the scores, and how far other seeds, test samples and targets move them.

    ``points``: the accuracy runs of each variant, a row of ``per_step`` each.
    """
    means = [curves.mean(each) for each in points]
    times = {
        target: per_step.mul([curves.steps_to(mean, target) for mean in means], axis=0)
        for target in (params.target, params.target - OTHER_TARGET, params.target + OTHER_TARGET)
    }
    generator, samples = np.random.default_rng(0), (params.test_samples, params.final_test_samples)
    steps = [curves.resampled_steps_to(each, params.target, samples, DRAWS, generator) for each in points]
    dense = pd.Series([each["variant"].iloc[0] == "none" for each in points], per_step.index)
    table = times.pop(params.target)
    table = table.assign(score=scores(table)).join(resampled(per_step, np.transpose(steps), dense))
    return table.assign(**{f"{AT_TARGET}{100 * target:.0f}": scores(time) for target, time in times.items()})


def timed(timing: pd.DataFrame, model: str, baseline: str) -> pd.DataFrame:
    """One row per variant from the timing runs of one model, in columns named after the model."""
    runs = timing[timing["model"] == model]
    against = {}
    for variant, rows in runs.groupby("variant"):
        own_s, baseline_s = (by_block(rows[rows["timed"] == name]) for name in (variant, baseline))
        against[variant] = columns({"against": repeatable(baseline_s / own_s)})
    table = summarise(runs).set_index("variant").join(pd.DataFrame.from_dict(against, orient="index"))
    return table[[column for column in table if column.startswith(TIMED)]].add_prefix(f"{model}_")


def percent(row: Row, name: str) -> str:
    sd = row[f"{name}_sd"] * 100
    return f"{row[name] * 100:.1f}" + ("" if pd.isna(sd) else f" ± {sd:.1f}")


def seconds(value: float) -> str:
    return "never" if math.isinf(value) else tables.number(value)


def after(row: Row, first: str) -> str:
    """What follows ``first`` in the names of the columns that begin with it."""
    return ", ".join(str(column).removeprefix(first) for column in row if str(column).startswith(first))


def of_training(row: Row, names: Names, params: Any) -> dict[str, str]:
    """The cells about accuracy runs."""
    sent = "" if row["sent_mb"] >= params.megabytes else f" ({tables.number(row['sent_mb'])} MB)"
    ends, others, sooner = ([key for key in row if key.startswith(first)] for first in (TO_TARGET, AT_TARGET, SOONER))
    rates = after(row, TO_TARGET)
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
        "Score": tables.spread(row, "score"),
        f"Score for {after(row, AT_TARGET)} %": ", ".join(f"{row[other]:.2f}" for other in others),
        f"Sooner than {names.variant('none')}{at} (%)": ", ".join(f"{100 * row[part]:.0f}" for part in sooner),
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
    runs = [points[points["variant"] == variant] for variant in names.variants_in(points["variant"])]
    table = pd.DataFrame([learnt(own, 1e6 * params.megabytes) for own in runs])
    of_rates = [seconds_per_step(rates[rates["variant"] == variant]) for variant in table["variant"]]
    table = table.join(ranked(runs, pd.DataFrame(of_rates), params))
    table = table.sort_values("score", ascending=False, kind="stable")
    models = names.models_in(timing["model"])
    for model in models:
        table = table.join(timed(timing, model, params.baseline), on="variant")
    cells = pd.DataFrame(
        of_training(row, names, params)
        | {k: v for model in models for k, v in of_timing(row, names, model, params.baseline).items()}
        for row in table.to_dict("records")
    )
    first, every = names.model(points["model"].iloc[0]), pd.concat([timing, rates])
    caption = f"{captions.of_script(snakemake)} Trained: {first}, {captions.setting(points)}; {captions.seeds(points)}."
    caption += f" Timed: {captions.setting(every)}; {captions.blocks(summarise(every))}."
    if len(disturbed := every[every["disturbed"].notna()]):
        variants, why = names.variants_in(disturbed["variant"]), dict.fromkeys(disturbed["disturbed"])
        caption += f" Disturbed: {', '.join(map(names.variant, variants))} ({'; '.join(why)})."
    tables.save_table(table, cells, caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
