"""Print what is still to run of a configuration, and how long it will take."""

import json
import sys
from pathlib import Path

import pandas as pd

from dlgs_bench.launch import remaining
from dlgs_bench.report import tables
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.spec import RunSpec
from dlgs_bench.timemodel import estimate, length

KEPT = "estimates.json"
UNITS = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3}


def shown(table: pd.DataFrame, names: Names) -> str:
    """All rows and a total, as text."""
    total = table.sum(numeric_only=True).to_dict() | {"kind": "total", "model": ""}
    rows = pd.DataFrame(
        {
            "Runs": row["kind"],
            "Model": names.model(row["model"]),
            "Number": f"{row['runs']:.0f}",
            "Finished": f"{row['finished']:.0f}",
            "Left (h:mm)": hours_and_minutes(row["hours"]),
            "GPU-hours": tables.number(row["gpu_hours"]),
            "A worker sends": in_bytes(row["sent_bytes"]) if row["sent_bytes"] else "",
        }
        for row in [*table.to_dict("records"), total]
    )
    rows = rows.drop(columns=[] if total["gpu_hours"] else ["GPU-hours"])
    aligned = ["left" if name in ("Runs", "Model") else "right" for name in rows]
    return rows.to_markdown(index=False, disable_numparse=True, tablefmt="simple", colalign=aligned)


def hours_and_minutes(hours: float) -> str:
    minutes = round(60 * hours)
    return f"{minutes // 60}:{minutes % 60:02d}"


def in_bytes(number: float) -> str:
    unit = next((unit for unit, size in UNITS.items() if number >= size), "KB")
    return f"{tables.number(number / UNITS[unit])} {unit}"


def grounds(left: dict[str, RunSpec], at_once: int) -> list[str]:
    """The assumptions of the estimate, one sentence each."""
    kinds = {spec.kind for spec in left.values()}
    notes = []
    if "accuracy" in kinds:
        notes.append("Accuracy runs: the time of all steps, test samples and starts, as measured in trials.")
    if "timing" in kinds:
        notes.append("Timing runs: timing.budget_s. A run whose intervals are narrow enough ends sooner.")
    if any(spec.kind == "timing" and not spec.measurement.budget_s for spec in left.values()):
        notes.append("Timing runs without a budget are not counted; give timing.budget_s.")
    if "accuracy" in kinds and at_once > 1:
        notes.append(f"Runs are counted one after the other, although the cores can train {at_once} at the same time.")
    if left:
        notes.append("A stopped run counts in full. Tables and figures are not counted.")
    return notes


def experience(ratios: pd.Series) -> str:
    """The errors of earlier estimates, in words."""
    if ratios.empty:
        return "The error of estimates is not known: no estimated run has finished."
    last = estimate.worst(ratios)
    words = f"Time that finished runs took, divided by their estimate: median {ratios.median():.2f}, "
    return words + f"worst {ratios[last]:.2f} ({last}), n = {len(ratios)}."


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    params, folder, trials, lines = snakemake.params, Path(snakemake.params.folder), {}, []
    for path in map(Path, snakemake.input.trials):
        record = json.loads(path.read_text(encoding="utf-8"))
        trials[path.parent.name] = estimate.measured(record, pd.read_csv(path.with_name("iterations.csv")))
        if record["disturbed"]:
            lines.append(f"The trial {path.parent.name} was disturbed: {record['disturbed']}.")
    runs, left, real_s = {}, {}, {}
    for name, text in params.specs.items():
        runs[name] = spec = RunSpec.from_json(text)
        if record := remaining.record(folder / name, spec):
            real_s[name] = length.took_s(folder / name, record)
        elif name in params.trial_of:
            trial, label = params.trial_of[name]
            left[name] = estimate.accuracy(spec, trials[Path(trial).name], label)
        else:
            left[name] = estimate.RunCost(spec.measurement.budget_s, 0)
    lines = grounds({name: runs[name] for name in left}, params.at_once) + lines
    lines.append(experience(estimate.off(estimate.read_estimates(folder / KEPT), runs, real_s)))
    table = shown(estimate.table(runs, left), Names.of(snakemake))
    print("\n".join(["", table, "", *lines]), file=sys.__stderr__)
    estimate.keep(folder / KEPT, runs, left)


if __name__ == "__main__":
    main(snakemake)
