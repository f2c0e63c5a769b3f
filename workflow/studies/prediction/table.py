"""Predicted and measured: the time of one iteration by the time model and by measurement.

Predicted: by the time model (equations 2 to 7 of the paper) from calibrations that are separate from the timing
runs. The calibrated costs are forward, each layer's backward on the slowest worker, the time to sparsify a bucket,
its time on the link, the latency of the last bucket, and how much communication and computation slow each other.
Costs between measured sizes are interpolated; the figures of the calibration show the errors. The times of the
optimizer and of the rest are added. Measured: the iteration of Table 2. Communications are predicted for the link
rate of the run. The machine's speed drifts between calibration and run: "paired" scales the computation by
uncompressed's forward in the same run, divided by forward in the calibration; communication is not scaled. A run
whose bytes differ from its calibration's is not predicted, and a warning is printed: by a factor above 1.1 if the
messages of a collective depend on the gradient, otherwise by a factor above 3."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd

from dlgs_bench.report import captions, tables
from dlgs_bench.report.load_runs import ABOUT, amortise, by_block, over_launches, read_members
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names
from dlgs_bench.spec import RunSpec
from dlgs_bench.timemodel.costs import Calibration
from dlgs_bench.timemodel.links import Network, project_costs
from dlgs_bench.timemodel.predict import Calibrations
from dlgs_bench.timemodel.timeline import Costs, schedule

# The largest factor between the bytes of an iteration and of its calibration: of a collective whose messages depend on
# the gradient, and of others. The density of a threshold differs between real and random gradients.
SAME_BYTES, SIMILAR_BYTES = 1.1, 3.0


def predict(folder: Path, label: str, everything: pd.DataFrame, calibrations: Calibrations) -> dict:
    """The row of the scheme ``label`` in the timing run in ``folder``; ``everything``: all its iterations."""
    spec = RunSpec.in_folder(folder).members[label]
    calibration = calibrations.of(spec)
    groups = pd.read_csv(folder / "groups.csv")
    groups = groups[groups["variant"] == label]
    plan = list(zip(groups["start"], groups["stop"], strict=True))
    times = schedule(calibration.sizes, on_its_links(calibration, spec, everything["slowdown"].median()), plan)
    timed, dense = (everything[everything["timed"] == variant] for variant in (spec.variant, "none"))
    measured_s, predicted_s = over_launches(by_block(timed)), times.iteration_s + calibration.rest_s
    slower = dense["forward_s"].median() / times.forward_s  # nothing is sent in forward, which would slow it too
    paired_s = slower * (predicted_s - times.communication_s) + times.communication_s
    most = SAME_BYTES if spec.scheme.streams else SIMILAR_BYTES
    warning = other_bytes(calibration, amortise(timed, "sent_bytes"), most)
    if warning:
        predicted_s, paired_s = math.nan, math.nan
    return {
        **{key: everything[key].iloc[0] for key in ABOUT},
        "groups": len(plan),
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "error": predicted_s / measured_s - 1,
        "slower": slower,
        "paired_s": paired_s,
        "paired_error": paired_s / measured_s - 1,
        "predicted_sparsify_s": times.sparsify_s,
        "measured_sparsify_s": amortise(timed, "sparsify_s"),
        "predicted_communication_s": times.communication_s,
        "measured_communication_s": amortise(timed, "communication_s"),
        "warning": warning,
    }


def on_its_links(calibration: Calibration, spec: RunSpec, slowdown: float) -> Costs:
    """The costs over the links of a run, which were ``slowdown`` times slower than in the calibration."""
    if slowdown == 1:
        return calibration.costs
    here = Network(spec.cluster.workers, min(spec.cluster.rates_mbit), spec.cluster.latency_ms)
    there = replace(here, rate_mbit=here.rate_mbit / slowdown)
    return project_costs(calibration.costs, spec.topology, calibration.traffic, here, there)


def other_bytes(calibration: Calibration, sent: float, most: float) -> str:
    """A warning if the factor between an iteration's bytes and its calibration's is above ``most``, or ""."""
    calibrated = calibration.traffic.sent * sum(calibration.sizes)
    if 1 / most <= sent / calibrated <= most:
        return ""
    return f"not predicted: sent {sent / 1e6:.3g} MB, calibrated with {calibrated / 1e6:.3g} MB"


def shown(table: pd.DataFrame, names: Names) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **tables.run_columns(row, names),
            "Groups": row["groups"],
            "Predicted (ms)": shown_or_none(row["predicted_s"] * 1e3, ".0f"),
            "Measured (ms)": f"{row['measured_s'] * 1e3:.0f}",
            "Error": shown_or_none(row["error"] * 100, "+.0f", " %"),
            "Paired (ms)": shown_or_none(row["paired_s"] * 1e3, ".0f"),
            "Paired error": shown_or_none(row["paired_error"] * 100, "+.0f", " %"),
            "Warning": row["warning"],
        }
        for row in table.to_dict("records")
    )


def shown_or_none(value: float, how: str, unit: str = "") -> str:
    return "" if math.isnan(value) else format(value, how) + unit


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names = Names.of(snakemake)
    calibrations = Calibrations(Path(path).parent for path in [*snakemake.input.layers, *snakemake.input.samples])
    folders = {path.parent.name: path.parent for path in map(Path, snakemake.input.timing)}
    timing = read_members([folder / "iterations.csv" for folder in folders.values()])
    table = names.arrange(
        pd.DataFrame(
            predict(folders[where], run.removeprefix(f"{where}-"), rows, calibrations)
            for (where, run), rows in timing.groupby(["timed_in", "run"], sort=False)
        )
    )
    caption = captions.of_script(snakemake) + " Error: " + captions.off(table, "error") + ". Paired error: "
    caption += f"{captions.off(table, 'paired_error')}. {captions.setting(table)}."
    tables.save_table(table, shown(table, names), caption, snakemake.output)


if __name__ == "__main__":
    main(snakemake)
