"""The time of one iteration against the rate of the links, per method: measured, and by the time model.

Points: timing runs over the testbed, whiskers: smallest and largest block. Lines: eqs 2-7 with the costs
calibrated at one rate (dotted vertical line); the bytes on the link take their time at each rate, the
processors' part of a communication stays. Uncompressed is the median over its runs beside the methods."""

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from harness import costs, plugins, style
from harness.links import elsewhere
from harness.planner import planners
from harness.spec import RunSpec
from harness.timeline import schedule


def load(folder: Path) -> tuple[RunSpec, dict]:
    run = json.loads((folder / "run.json").read_text())
    return RunSpec.from_json(json.dumps(run["spec"])), {p.stem: pd.read_csv(p) for p in folder.glob("*.csv")}


def plan_of(spec: RunSpec, sizes: list[int], known: costs.Costs, measured: RunSpec):
    """The groups that a method exchanges: by its scope, or by the configuration's planner at this rate."""
    scope = plugins.scope(spec.method)
    name = {"model": "all", "layer": "layer", "size": "size", "plan": measured.planner}[scope]
    return planners(measured.bucket_bytes // 4)[name](sizes, known)


style.log_errors(snakemake)
table = pd.read_csv(snakemake.input[0])
calibrations = [load(Path(run).parent) for run in snakemake.input.calibration]
layers = {spec.model: (spec, tables) for spec, tables in calibrations if spec.kind == "layers"}
ratio = table["ratio"].dropna().iloc[0]
exchanges = {
    spec.method: (spec, tables)
    for spec, tables in calibrations
    if spec.kind == "exchanges" and spec.topology == "allgather" and spec.ratio in (None, ratio)
}
models = [m for m in style.MODELS if m in set(table["model"])]
figure, grid = plt.subplots(1, len(models), figsize=(4.4 * len(models), 4.2), layout="constrained", squeeze=False)
rates = np.geomspace(table["rate_mbit"].min() / 1.5, table["rate_mbit"].max() * 1.5, 60)
methods = style.in_order(table["method"])
for axes, model in zip(grid[0], models, strict=True):
    spec, tables = layers[model]
    for method in methods:
        look = style.line(method, methods)
        rows = table[(table["model"] == model) & (table["method"] == method)].sort_values("rate_mbit")
        y, low, high = (rows[c] * 1e3 for c in ("iteration_s", "iteration_s_min", "iteration_s_max"))
        axes.errorbar(rows["rate_mbit"], y, yerr=[(y - low).clip(lower=0), (high - y).clip(lower=0)],
                      capsize=2, elinewidth=0.8, **look | {"linestyle": ""})  # fmt: skip
        measured, found = exchanges[method]
        known = costs.calibration(tables["layers"], tables["iterations"], found["samples"])
        here = (measured.workers, min(measured.rates_mbit))
        curve = []
        for rate in rates:
            density = None if measured.ratio is None else measured.ratio
            there = elsewhere(known.costs.communicate, measured.topology, density, here, (measured.workers, rate))
            at_rate = replace(known.costs, communicate=there)
            plan = plan_of(measured, known.sizes, at_rate, spec)
            curve.append(schedule(known.sizes, at_rate, plan).iteration_s + known.rest_s)
        axes.plot(rates, np.array(curve) * 1e3, **look | {"marker": "", "label": None, "linewidth": 1})
    axes.axvline(here[1], color="0.6", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted(table["rate_mbit"].unique())
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("rate of every link (Mbit/s)")
    rows = table[table["model"] == model]
    axes.set_title(f"{style.MODELS[model]}, {style.data_label(rows.iloc[0])}, ratio {ratio:g}", fontsize=9)
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)
grid[0][0].set_ylabel("time of one iteration (ms)")
figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
first = table.iloc[0]
note = f"{first['machine']}; testbed; {first['engine']}, {first['workers']} workers; n = {table['iterations'].min()} "
note += f"to {table['iterations'].max()} iterations a point, whiskers: smallest and largest block"
figure.supxlabel(textwrap.fill(note, 70 * len(models)), fontsize=6.5, color="0.3", x=0.02, ha="left")
style.save_figure(figure, snakemake.output)
