"""Predicted against measured: the time of one iteration by the time model and by the clock.

Predicted by eqs 2-7 from calibrations made apart from the timing runs: forward and each layer's
backward, the time to sparsify a bucket between measured sizes, and to communicate it as alpha + beta *
entries and a latency (robust fits; R^2 of both beside them), plus optimizer, other, and what a worker waits for
slower ones in an iteration without exchange. Measured: Table 2's iteration. The machine's speed drifts between
calibration and run: "paired" scales what is computed by how long forward and backward of uncompressed took in the
same run, against the calibration; what is communicated is left as predicted."""

import json
from pathlib import Path

import pandas as pd

from harness.config import grid
from harness.report import style
from harness.report.summary import amortise
from harness.report.tidy import read
from harness.spec import RunSpec
from harness.timemodel import calibrated
from harness.timemodel.timeline import schedule


def predict(run: Path, calibration: Path) -> dict:
    """One row for the timing run in the folder ``run``."""
    spec = RunSpec.from_dict(json.loads((run / "run.json").read_text())["spec"])
    model = calibration / "layers" / grid.layers_name(spec)
    samples = calibration / "exchanges" / grid.exchange_name(spec) / "samples.csv"
    known = calibrated.read(model / "layers.csv", model / "iterations.csv", samples, spec)
    groups = pd.read_csv(run / "groups.csv").query("variant == @spec.method")
    plan = list(zip(groups["start"], groups["stop"], strict=True))
    times = schedule(known.sizes, known.costs, plan)
    everything = read([run / "iterations.csv"])
    timed, dense = everything.query("variant == @spec.method"), everything.query("variant == 'none'")
    measured_s, predicted_s = amortise(timed, "iteration_s"), times.iteration_s + known.rest_s
    slower = (dense["forward_s"] + dense["backward_s"]).median() / (times.forward_s + times.backward_s)
    paired_s = slower * (predicted_s - times.communication_s) + times.communication_s
    about = ("model", "method", "ratio", "topology", "engine", "workers", "network", *style.LINKS)
    about += ("machine", "data", "stand_in")
    return {
        **{key: everything[key].iloc[0] for key in about},
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
        "r2_sparsify": known.fits["sparsify"]["r2"],
        "r2_communicate": known.fits["communicate"]["r2"],
        "warnings": "; ".join(known.fits["warnings"]),
    }


def show(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            **style.run_columns(row),
            "Groups": row["groups"],
            "Predicted (ms)": f"{row['predicted_s'] * 1e3:.0f}",
            "Measured (ms)": f"{row['measured_s'] * 1e3:.0f}",
            "Error": f"{row['error']:+.0%}",
            "Paired (ms)": f"{row['paired_s'] * 1e3:.0f}",
            "Paired error": f"{row['paired_error']:+.0%}",
            "R^2 (sparsify, communicate)": f"{row['r2_sparsify']:.2f}, {row['r2_communicate']:.2f}",
            "Warnings": row["warnings"],
        }
        for row in table.to_dict("records")
    )


if __name__ == "__main__":
    style.log_errors(snakemake)
    folders = [Path(path).parent for path in snakemake.input.timing]
    calibration = Path(snakemake.input.layers[0]).parents[2]
    table = style.arrange(pd.DataFrame(predict(folder, calibration) for folder in folders))
    caption = " ".join(snakemake.params.caption.split())
    for kind, column in (("error", "error"), ("paired error", "paired_error")):
        size = table[column].abs()
        caption += f" Median {kind} {size.median():.0%}, worst {size.max():.0%}."
    caption += f" {style.setting(table)}."
    style.save_table(table, show(table), caption, snakemake.output)
