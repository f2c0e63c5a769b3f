"""Timeline: one iteration drawn to scale, measured on rank 0, and as the time model schedules it.

It replaces the paper's Figure 3. Top: one iteration after the timed iterations; with DLGS, an iteration that reuses its
thresholds. Each bar of communication starts when the bucket was queued and ends when it arrived, so it includes the
wait for earlier buckets. The wait for communication includes the wait for slower workers; Figure 12 separates these.
Bottom: the time model (equations 2 to 7 of the paper) with the calibrated costs and the same groups."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from dlgs_bench import looks
from dlgs_bench.report import captions, style
from dlgs_bench.report.load_runs import run_metadata
from dlgs_bench.report.log import Script, log_errors
from dlgs_bench.report.names import Names, at_ratio
from dlgs_bench.spec import RunSpec
from dlgs_bench.timemodel import predict
from dlgs_bench.timemodel.timeline import schedule

WAIT = "waiting for communication and slower workers"  # the trace of one rank does not separate them
PART_OF = {
    "forward": "computation",
    "backward": "computation",
    "sparsify": "sparsification",
    "communication": WAIT,
    "optimizer": "optimizer and other",
    "other": "optimizer and other",
}
BUCKET = ("#0072B2", "\\\\")  # colour and hatch of a bucket's communication
LOOKS = {part: (colour, hatch) for part, (_, colour, hatch) in looks.PARTS.items() if part in PART_OF.values()}
LOOKS[WAIT] = looks.PARTS["waiting for slower workers"][1:]


def predicted(files: Any, spec: RunSpec, groups: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The schedule of the time model as intervals, in the format of a run's trace, and the seconds until its end.

    A bar of communication ends when the link is free; the last message arrives after the link's latency.
    """
    calibration = predict.read(files.layers, files.iterations, files.samples, spec)
    plan = list(zip(groups["start"], groups["stop"], strict=True))
    times = schedule(calibration.sizes, calibration.costs, plan)
    rows = [("compute", "forward", 0.0, times.forward_s)]
    rows += [("compute", "backward", *interval) for interval in times.backward]
    rows += [("compute", "sparsify", *interval) for interval in times.sparsify]
    rows += [("communication", f"bucket {i}", *interval) for i, interval in enumerate(times.communicate)]
    return pd.DataFrame(rows, columns=["row", "name", "begin_s", "end_s"]), times.iteration_s


def draw_rows(axes: Axes, trace: pd.DataFrame, title: str) -> None:
    for y, row in enumerate(("compute", "communication")):
        for item in trace[trace["row"] == row].itertuples():
            colour, hatch = LOOKS[PART_OF[item.name]] if row == "compute" else BUCKET
            span = (item.begin_s * 1e3, (item.end_s - item.begin_s) * 1e3)
            axes.broken_barh([span], (y - 0.35, 0.7), facecolors=colour, hatch=hatch, edgecolor="white", linewidth=0.3)
    axes.set_yticks([0, 1], ["compute", "communication"])
    axes.set_ylim(1.5, -0.5)
    axes.set_title(title, fontsize=9, loc="left")
    style.open_frame(axes)


def main(snakemake: Script) -> None:
    log_errors(snakemake)
    names, folder, label = Names.of(snakemake), Path(snakemake.input.run).parent, snakemake.params.label
    spec, metadata = RunSpec.in_folder(folder).members[label], run_metadata(folder, label)
    tables = map(pd.read_csv, (snakemake.input.trace, snakemake.input.groups))
    trace, groups = (table[table["variant"] == label] for table in tables)
    model, predicted_s = predicted(snakemake.input, spec, groups)
    figure, (above, below) = plt.subplots(2, 1, figsize=(7.5, 3.8), sharex=True, layout="constrained")
    draw_rows(above, trace, f"measured, rank 0, {trace['end_s'].max() * 1e3:.0f} ms")
    title = f"predicted, {predicted_s * 1e3:.0f} ms (backward of the slowest worker; without optimizer and other)"
    draw_rows(below, model, title)
    below.set_xlabel("time from the start of the iteration (ms)")
    meanings = LOOKS | {"communication of a bucket": BUCKET}
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=c, hatch=h, edgecolor="white") for c, h in meanings.values()]
    style.legend(figure, handles, meanings)
    name = f"{names.model(spec.training.model)}, {names.variant(spec.variant)}{at_ratio(spec.ratio)}"
    note = f"{name}; {spec.topology.title}; {len(groups)} groups ({spec.scheme.planner}); "
    note += f"{captions.setting(pd.DataFrame([metadata]))}; one iteration, n = 1"
    style.save(figure, note, snakemake)


if __name__ == "__main__":
    main(snakemake)
