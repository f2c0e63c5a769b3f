"""One iteration drawn to scale: measured on rank 0, and as the time model schedules it.

In the place of the paper's Figure 3. Above: the last timed iteration; communication is drawn from when
a bucket was handed over to when its arrival was seen, which is late by up to one layer's backward. Below:
eqs 2-7 with the calibrated costs and the same groups."""

import json
import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from harness.report import style
from harness.timemodel import calibrated
from harness.spec import RunSpec
from harness.timemodel.timeline import schedule

LOOK = {
    "forward": "computation",
    "backward": "computation",
    "sparsify": "sparsification",
    "communication": "non-overlapped communication",
    "optimizer": "optimizer and other",
    "other": "optimizer and other",
}


def predicted(files, spec: RunSpec, groups: pd.DataFrame) -> pd.DataFrame:
    """The model's schedule as intervals, in the form of a run's trace."""
    known = calibrated.read(files.layers, files.iterations, files.samples, spec)
    plan = list(zip(groups["start"], groups["stop"], strict=True))
    times = schedule(known.sizes, known.costs, plan)
    rows = [("compute", "forward", 0.0, times.forward_s)]
    rows += [("compute", "backward", *interval) for interval in times.backward]
    rows += [("compute", "sparsify", *interval) for interval in times.sparsify]
    rows += [("communication", f"bucket {i}", *interval) for i, interval in enumerate(times.communicate)]
    return pd.DataFrame(rows, columns=["row", "name", "begin_s", "end_s"])


def draw_rows(axes, trace: pd.DataFrame, title: str) -> None:
    for y, row in enumerate(("compute", "communication")):
        for item in trace[trace["row"] == row].itertuples():
            part = LOOK[item.name] if row == "compute" else "communication"
            colour, hatch = style.PARTS.get(part, ("#0072B2", "\\\\"))
            span = (item.begin_s * 1e3, (item.end_s - item.begin_s) * 1e3)
            axes.broken_barh([span], (y - 0.35, 0.7), facecolors=colour, hatch=hatch, edgecolor="white", linewidth=0.3)
    axes.set_yticks([0, 1], ["compute", "communication"])
    axes.invert_yaxis()
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    style.log_errors(snakemake)
    trace, groups = pd.read_csv(snakemake.input.trace), pd.read_csv(snakemake.input.groups)
    about = json.loads(Path(snakemake.input.run).read_text())
    spec = about["spec"]
    groups = groups[groups["variant"] == spec["method"]]
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 3.8), sharex=True, layout="constrained")
    draw_rows(above, trace, f"measured, rank 0, {trace['end_s'].max() * 1e3:.0f} ms")
    model = predicted(snakemake.input, RunSpec.from_dict(spec), groups)
    draw_rows(
        below, model, f"predicted, {model['end_s'].max() * 1e3:.0f} ms (without optimizer, other and slower workers)"
    )
    below.set_xlabel("time from the start of the iteration (ms)")
    looks = style.PARTS | {"communication of a bucket": ("#0072B2", "\\\\")}
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=c, hatch=h, edgecolor="white") for c, h in looks.values()]
    figure.legend(handles, looks, loc="outside upper center", ncols=3, frameon=False, fontsize=7.5)
    ratio = f" at {spec['ratio']:g}" if spec["ratio"] else ""
    name = f"{style.MODELS.get(spec['model'], spec['model'])}, {style.method_label(spec['method'])}{ratio}"
    where = about["provenance"]
    note = f"{name}, {len(groups)} group(s) ({spec['planner']}); {where['machine']}; "
    note += f"{style.network(pd.DataFrame([where]))}; {spec['engine']}, {spec['workers']} workers; one iteration, n = 1"
    figure.supxlabel(textwrap.fill(note, 130), fontsize=6.5, color="0.3", x=0.02, ha="left")
    style.save_figure(figure, snakemake.output)


main()
