"""Does compressing gradients pay? One row per model, over all-gather.

Pays: yes, if the speed-up of at least one method over the fastest uncompressed is significantly above 1 (95 %); no, if
the speed-ups of all methods are significantly below 1 and no run was disturbed; a verdict needs three blocks and the
paper's batch (32; ResNet-50: 64), because at a smaller batch selection and exchange weigh more against computing. Best
method: of the methods that are significantly faster, the method with the highest lower end of its interval; if no
method is, the method with the largest speed-up. Not significantly slower: other methods that are not significantly
slower than the best, and their speed-ups divided by its speed-up. 16 bits: a dense sum in half the bytes, a second
baseline, which is not a best method. Against 16 bits: the speed-up over 16 bits, block by block. Gains 10 % below: the
link rate (Gb/s) below which the method's speed-up exceeds 1.1, predicted by the time model; the range allows for an
error of the prediction by a factor of 1.34; with proportional links, rates are of the nodes for which these links
stand. Over sessions: the smallest and the largest speed-up of the method in this session and in kept sessions of other
days and machines, and the number of sessions; a bracket covers one session only. Training accuracy: the method's minus
uncompressed's, at the end of the longest training of both, over n seeds; less than one epoch does not count as
training. Kept run: it is one of the long runs in the repository, not one of this session."""

import json
import math
from pathlib import Path

import pandas as pd

from dlgs_bench.config import grid
from dlgs_bench.paper.claims import few, other_batch
from dlgs_bench.paper.findings import HALF, against_16_bits, best_of
from dlgs_bench.report import captions, kept, sessions, tables
from dlgs_bench.report.load_runs import last_points
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, data_title, label, ratio_of
from dlgs_bench.report.summary import SETTING, Repeats, over_all_gather, speedups, summarise
from dlgs_bench.spec import RunSpec
from dlgs_bench.stats import Estimate
from dlgs_bench.timemodel import iterations
from dlgs_bench.timemodel.checked_range import SPEEDUP_FACTOR
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.predict import Calibrations, Projection

GAIN = 1.1  # a speed-up worth having
BREAK_EVEN = {
    "break_even_mbit": GAIN,
    "break_even_low_mbit": GAIN * SPEEDUP_FACTOR,
    "break_even_high_mbit": GAIN / SPEEDUP_FACTOR,
}
ACCURACY = tuple(f"accuracy_{what}" for what in ("cost", "ratio", "epochs", "seeds", "kept", "stand_in"))
YES, NO, UNDECIDED = "yes", "no", "no significant difference"
DISTURBED = "not judged: every run was disturbed"


def answers(timing: pd.DataFrame, names: Names) -> pd.DataFrame:
    """The best method of each model, its speed-up, and its speed-up divided by the speed-up of 16 bits.

    Disturbed runs count only if a model has no others; the model then has no verdict.
    """
    over = over_all_gather(timing)
    every, repeats = summarise(over), Repeats(over)
    compressed = every[every["variant"] != "none"]
    compressed = compressed[compressed["variant"] != HALF] if set(compressed["variant"]) > {HALF} else compressed
    rows = []
    for model in names.models_in(compressed["model"]):
        here = compressed[compressed["model"] == model]
        quiet = here[here["disturbed"].isna()]
        best, gains = best_of(here if quiet.empty else quiet)
        row = best.to_dict() | {"pays": DISTURBED if quiet.empty else verdict(best, gains, here)}
        row["as_fast"] = as_fast(over, repeats, best, quiet, names) if gains else ""
        ratio = against_16_bits(over, repeats, best) or Estimate(math.nan, math.nan, math.nan)
        rows.append(row | {"against_16": ratio.value, "against_16_low": ratio.low, "against_16_high": ratio.high})
    return pd.DataFrame(rows)


def as_fast(timing: pd.DataFrame, repeats: Repeats, best: pd.Series, others: pd.DataFrame, names: Names) -> str:
    """The methods that are not significantly slower than ``best``, each with its speed-up divided by the best's.

    ``timing``: the iterations. ``others``: rows of a summary, of the same model.
    """
    runs = dict(iter(timing.groupby("run")))
    alike = others[(others[SETTING] == best[SETTING]).all(axis=1) & (others["run"] != best["run"])]
    quotients = {label(one, names): repeats.quotient(runs[one["run"]], runs[best["run"]], speedups)
                 for _, one in alike.iterrows()}  # fmt: skip
    return ", ".join(f"{words}: {one.text()}" for words, one in quotients.items() if one.enough and one.high >= 1)


def verdict(best: pd.Series, gains: bool, every: pd.DataFrame) -> str:
    """Whether compression pays on the model of ``best``, its best method; ``gains``: the gain is significant.

    ``every``: the rows of all methods. It does not pay if each of them is significantly slower than uncompressed, and
    none was disturbed.
    """
    if not best["enough"]:
        return f"not judged: {few(best['blocks'])}"
    if papers := other_batch(best["model"], best["batch"]):
        return f"batch {best['batch']:g}, paper {papers}: no verdict"
    if gains:
        return YES
    slower = (every["speedup_high"] < 1) & every["disturbed"].isna()  # NaN, without an interval, is not below 1
    return NO if slower.all() else UNDECIDED


def break_even(row: dict, calibrated: list[Projection], rates: dict[str, dict]) -> dict[str, float]:
    """Mb/s, and the ends of its range; with proportional links of the other nodes' links; NaN if not calibrated.

    ``rates``: the content of rate files, by the name of the calibration of layers.
    """
    projections = {one.spec.variant: one for one in calibrated if fits(one.spec, row)}
    if not {"none", row["variant"]} <= set(projections):
        return dict.fromkeys(BREAK_EVEN, math.nan)
    latency_ms = 0.0 if pd.isna(row["latency_ms"]) else row["latency_ms"]  # of the host's own network: not known
    there = Network(row["workers"], row["rate_mbit"], latency_ms)
    rate = rates.get(grid.layers_name(projections["none"].spec))
    scale = 1.0 if rate is None else rate["nodes"]["link_mbit"] / rate["proportional_mbit"]
    models = projections["none"], projections[row["variant"]]
    return {key: scale * iterations.break_even_mbit(*models, there, gain) for key, gain in BREAK_EVEN.items()}


def fits(spec: RunSpec, row: dict) -> bool:
    """Whether a calibrated exchange is the row's method or uncompressed, on the row's model and topology."""
    setting = spec.training.model, spec.topology.name, spec.cluster.workers
    same = setting == tuple(row[key] for key in SETTING)
    return same and (spec.variant == "none" or (spec.variant, spec.ratio) == (row["variant"], ratio_of(row)))


def accuracy_cost(row: dict, tables_of_points: list[pd.DataFrame]) -> dict:
    """The difference in accuracy, the ratio, epochs and seeds, in the longest training of both methods.

    ``tables_of_points``: of this session, and of kept runs. Among trainings of equal length, the ratio of the row
    counts, then the number of seeds, then this session. ``accuracy_kept``: whether it is a kept run.
    ``accuracy_stand_in``: the title of its data, if they are a stand-in.
    """
    longest = {}
    for place, points in enumerate(tables_of_points):
        last = last_points(points[points["model"] == row["model"]])
        dense = last[last["variant"] == "none"].set_index("seed")
        for ratio, own in last[last["variant"] == row["variant"]].groupby("ratio", dropna=False):
            both = own.set_index("seed").join(dense, rsuffix="_dense", how="inner")
            both = both[both["epoch"] == both["epoch_dense"]]
            epochs = both["epoch"].max()
            both = both[both["epoch"] == epochs]
            if len(both) and epochs >= 1:
                cost = (both["train_accuracy"] - both["train_accuracy_dense"]).mean()
                metadata = {"accuracy_cost": cost, "accuracy_ratio": ratio, "accuracy_epochs": epochs}
                metadata |= {"accuracy_seeds": len(both), "accuracy_kept": bool(place)}
                first = both.iloc[0]
                metadata["accuracy_stand_in"] = data_title(first) if first["stand_in"] else ""
                longest[epochs, ratio == row["ratio"], len(both), -place] = metadata
    return longest[max(longest)] if longest else dict.fromkeys(ACCURACY, math.nan)


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "Model": f"{names.model(row['model'])}, batch {row['batch']:g}",
            "Pays": row["pays"],
            "Best method": f"none (largest: {label(row, names)})"
            if row["pays"] in (NO, UNDECIDED)
            else label(row, names),
            "Not significantly slower": row["as_fast"],
            "Speed-up": tables.spread(row, "speedup"),
            "Over sessions": sessions.cell(row),
            "Against 16 bits": "" if pd.isna(row["against_16"]) else tables.spread(row, "against_16"),
            "Predicted: gains 10 % below (Gb/s)": rates_words(row["break_even_low_mbit"], row["break_even_high_mbit"]),
            "Training accuracy": accuracy_words(row),
            "n": row["blocks"],
        }
        for row in table.to_dict("records")
    )


def rates_words(low_mbit: float, high_mbit: float) -> str:
    if pd.isna(low_mbit):
        return ""
    if math.isinf(low_mbit) or not high_mbit:
        return "every rate" if low_mbit else "no rate"
    low, high = (f"{float(f'{mbit / 1e3:.2g}'):g}" for mbit in (low_mbit, high_mbit))
    if math.isinf(high_mbit):
        return f"at least {low}" if low_mbit else "not known"
    return f"{low} to {high}" if low_mbit else f"at most {high}"


def accuracy_words(row: dict) -> str:
    if pd.isna(row["accuracy_cost"]):
        return "not trained"
    ratio = "" if pd.isna(row["accuracy_ratio"]) else f" at ratio {row['accuracy_ratio']:g}"
    short = captions.too_short(row | {"train_epochs": row["accuracy_epochs"]})
    if short and row["accuracy_seeds"] == 1:
        return f"not ranked: one seed, {row['accuracy_epochs']:g} epochs"
    n = f"n = {row['accuracy_seeds']:g}" + (", early in training" if short else "")
    n += ", kept run" if row["accuracy_kept"] else ""
    n += f", {row['accuracy_stand_in']}" if row["accuracy_stand_in"] else ""
    return f"{100 * row['accuracy_cost']:+.1f} points after {row['accuracy_epochs']:g} epochs{ratio} ({n})"


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    inputs, names = snakemake.input, Names.of(snakemake)
    table = answers(pd.read_csv(inputs.timing), names)
    table = sessions.over_sessions(table, sessions.kept_speedups(inputs.sessions, table["model"].unique(), names))
    calibrated = Calibrations(Path(run).parent for run in inputs.calibration).each()
    rates = {Path(path).stem: json.loads(Path(path).read_text(encoding="utf-8")) for path in inputs.rates}
    points = [pd.read_csv(inputs.accuracy), *map(names.comparable, kept.read(inputs.kept))]
    rows = table.to_dict("records")
    table = table.join(pd.DataFrame([break_even(row, calibrated, rates) for row in rows]))
    table = table.join(pd.DataFrame([accuracy_cost(row, points) for row in rows]))
    caption = f"{captions.of_script(snakemake)} {captions.setting(table)}. In brackets: {captions.repeat(table)}. "
    tables.save_table(table, shown(table, names), f"{caption}{captions.counted(table)}.", snakemake.output)


if __name__ == "__main__":
    main(snakemake)
