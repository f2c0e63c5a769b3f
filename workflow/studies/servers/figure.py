"""How much faster than uncompressed a method is with a parameter server, against the rate of the links.

Workers push what they send, and pull the server's weights dense. Where links are slow, uncompressed takes the time of a
dense push and a dense pull, and no method less than that of the pull: no speed-up can pass 2 (dashed). The paper's
largest is 1.99 (dotted). Points: measured; lines: eqs 2-7 with the costs calibrated at the fastest of the rates."""

from pathlib import Path

import numpy as np
import pandas as pd

from harness.report import captions, looks
from harness.report.log import log_errors
from harness.report.names import Names, at_ratio, data_title
from harness.timemodel.predict import Calibrations, Elsewhere
from harness.topology import TOPOLOGIES

CEILING, PAPER = 2.0, 1.99


def draw(axes, look: dict, rows: pd.DataFrame, dense: Elsewhere, own: Elsewhere, rates: np.ndarray) -> None:
    """One variant: measured speed-ups as points, predicted ones as a line."""
    rows = rows.sort_values("rate_mbit")
    y, low, high = (rows[column] for column in ("speedup", "speedup_low", "speedup_high"))
    axes.errorbar(rows["rate_mbit"], y, yerr=looks.whiskers(y, low, high), capsize=2, elinewidth=0.8,
                  **look | {"linestyle": ""})  # fmt: skip
    workers = own.here[0]
    curve = [dense.iteration_s(workers, rate) / own.iteration_s(workers, rate) for rate in rates]
    axes.plot(rates, curve, **look | {"marker": "", "label": None, "linewidth": 1})


def finish(axes, ticks: list[float]) -> None:
    axes.axhline(CEILING, color="0.3", linestyle="--", linewidth=0.8)
    axes.axhline(PAPER, color="0.3", linestyle=":", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, CEILING * 1.15)
    axes.set_xlabel("rate of every link (Mbit/s)")
    axes.set_ylabel("speed-up against uncompressed")
    axes.grid(alpha=0.3)
    looks.open_frame(axes)


def main() -> None:
    log_errors(snakemake)
    names, table = Names.of(snakemake), pd.read_csv(snakemake.input.table)
    calibrated = [Path(run).parent for run in [*snakemake.input.layers, *snakemake.input.exchanges]]
    known = Calibrations(calibrated).elsewhere()
    models = names.models_in(model for model, _ in known)
    ticks = sorted(snakemake.params.rates)
    table = table[table["rate_mbit"].isin(ticks) & table["model"].isin(models)]
    rates = np.geomspace(ticks[0] / 1.5, ticks[-1] * 1.5, 60)
    figure, panels = looks.panels(len(models), 4.6, 3.4)
    for axes, model in zip(panels, models, strict=True):
        rows = table[table["model"] == model]
        for variant in names.variants_in(rows["variant"]):
            if variant != "none":
                own = rows[rows["variant"] == variant]
                draw(axes, looks.of_variant(variant, names), own, known[model, "none"], known[model, variant], rates)
        finish(axes, ticks)
        topology = TOPOLOGIES[rows["topology"].iloc[0]].title
        ratio = at_ratio(rows["ratio"].dropna().min())
        axes.set_title(f"{names.model(model)}, {data_title(rows.iloc[0])}{ratio}; {topology}", fontsize=8)
    looks.legend(figure, *panels[0].get_legend_handles_labels())
    first = table.iloc[0]
    note = f"{first['machine']}; testbed; {first['engine']}, {first['workers']} workers and a server; n = "
    note += f"{captions.least_to_most(table['blocks'])} blocks a point, whiskers: where a repeat lies, 19 times in 20"
    looks.save(figure, note, snakemake.output)


main()
