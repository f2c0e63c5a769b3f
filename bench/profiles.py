"""Whether one recorded profile predicts the same job over other links, with more workers and with latency.

    python bench/profiles.py results/reference-profiles --budget-s 1500

Two workers of an ordinary training script (``profiles_script.py``) record a profile on the testbed, at one link rate.
Then the same script is timed over other networks: uncompressed, and with methods through ``DDPHook``, in turns. The
time model of ``dlgs-bench advise`` predicts every iteration from the one profile.

Finished cases are kept under results/runs/profiles and are not measured again, so the same command continues a stopped
run. With ``--budget-s 0`` it measures nothing, predicts the kept cases again, and writes the tables, the figure and the
page.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
from profiles_script import ALONE, ENGINE, PROBE, PROFILE, RECORDING, REPEATS, UNCOMPRESSED

from dlgs_bench.engines import ENGINES
from dlgs_bench.fingerprint import commit
from dlgs_bench.launch import hosts
from dlgs_bench.launch.progress import clock
from dlgs_bench.report import captions, style, tables
from dlgs_bench.report.names import Names
from dlgs_bench.stats import repeatable
from dlgs_bench.testbed.testbed import Testbed, why_unavailable
from dlgs_bench.timemodel import advice, job_advice
from dlgs_bench.timemodel.checked_range import TIED
from dlgs_bench.timemodel.job_profile import load
from dlgs_bench.timemodel.links import Network

RUNS = Path("results/runs/profiles")
SCRIPT = Path(__file__).with_name("profiles_script.py")
MORE_WORKERS, LATENCY_MS = 3, 5.0
MOST_BLOCKS = 12
GRACE_S = 60.0  # ranks that have not ended this long after the end of the budget are stopped
CLOSE = 1.05  # a first choice is good if it takes at most this many times as long as the fastest
BAND = 1.25  # the grey band of the figure
CAPTION = f"""Measured iterations over predicted iterations. One profile of each job, recorded by 2 workers at one link
rate, predicts the job at three other rates, with {MORE_WORKERS} workers, and with {LATENCY_MS:g} ms of latency.
Whiskers: the 95 % interval of a repeat. Line: prediction and measurement agree. Grey: within a factor of {BAND}."""


@dataclass(frozen=True)
class Job:
    """A model in a kind of script. ``batch``: samples per worker. ``rates_mbit``: the rate of the recording, then the
    rates that are predicted. ``weight``: the share of the budget, per case. ``steps``: the steps that are recorded."""

    model: str
    script: str
    batch: int
    rates_mbit: tuple[float, ...]
    weight: float
    steps: int = 12

    @property
    def name(self) -> str:
        return f"{self.model}-{self.script}"


JOBS = (
    Job("resnet20", "ddp", 32, (200, 100, 400, 1000), 1.1),
    Job("language_model", "accelerate", 8, (300, 150, 600, 1000), 1.5),
    Job("mobilenet_v2", "ddp", 16, (300, 150, 600, 1000), 1.5),
    Job("vgg16", "ddp", 16, (400, 200, 700, 1000), 3),
    Job("transformer", "ddp", 4, (400, 200, 700, 1000), 2.4),
    Job("language_model", "ddp", 8, (300, 150, 600, 1000), 1.5),
    Job("resnet50", "ddp", 8, (600, 400, 800, 1000), 4.5, steps=8),
)


def cases_of(job: Job) -> list[dict]:
    """The networks that are predicted, and the file of each. At the highest rate, the probe is timed too."""
    recorded, *others = job.rates_mbit
    networks = [(2, rate, 0.0) for rate in others] + [(MORE_WORKERS, recorded, 0.0), (2, recorded, LATENCY_MS)]
    return [
        {"workers": workers, "rate_mbit": rate, "latency_ms": latency_ms, "probed": rate == max(others),
         "file": f"{workers}workers-{rate:g}mbit-{latency_ms:g}ms.json"}
        for workers, rate, latency_ms in networks
    ]  # fmt: skip


def launches(jobs: list[Job], runs: Path) -> list[tuple[Job, list[dict]]]:
    """The unfinished cases, by the testbed that they need. The first ones of a job record its profile."""
    return [
        (job, left)
        for job in jobs
        for _, cases in groupby(cases_of(job), lambda case: (case["workers"], case["latency_ms"]))
        if (left := [case for case in cases if not (runs / job.name / case["file"]).exists()])
    ]


def measure_all(jobs: list[Job], runs: Path, budget_s: float) -> bool:
    """Measure what is not finished, within the budget. Return whether all ranks that were started succeeded."""
    end, failed, left = time.time() + budget_s, set(), launches(jobs, runs)
    weights = [job.weight * (len(cases) + 1) for job, cases in left]  # a start takes about as long as a case
    for number, (job, cases) in enumerate(left):
        left_s = end - time.time()
        if left_s <= 0:
            print(f"The budget is spent before launch {number + 1} of {len(left)}. The same command continues.")
            break
        if job in failed:
            print(f"{job.name}: its other cases are left out", flush=True)
            continue
        networks = ", ".join(f"{case['rate_mbit']:g} Mb/s" for case in cases)
        networks += f", {cases[0]['workers']} workers, {cases[0]['latency_ms']:g} ms"
        print(f"{clock(left_s)} left; launch {number + 1} of {len(left)}: {job.name}, {networks}", flush=True)
        until = time.time() + left_s * weights[number] / sum(weights[number:])
        if not measure(job, cases, runs / job.name, until, end):
            print(f"{job.name}: the ranks failed, see above; the same command tries it again", flush=True)
            failed.add(job)
    return not failed


def measure(job: Job, cases: list[dict], folder: Path, until: float, end: float) -> bool:
    """Start the ranks, which time the cases about until ``until``. Return whether they succeeded.

    They are stopped ``GRACE_S`` after ``end``, the end of the whole budget.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as made,
        Testbed([job.rates_mbit[0]] * cases[0]["workers"], cases[0]["latency_ms"]) as testbed,
    ):
        request = {
            "job": asdict(job), "cases": cases, "folder": str(folder.resolve()), "until": until,
            "most_blocks": MOST_BLOCKS,
        }  # fmt: skip
        path = Path(made, "request.json")
        path.write_text(json.dumps(request), encoding="utf-8")
        guard = threading.Timer(max(0.0, end - time.time()) + GRACE_S, testbed.stop)
        guard.start()
        try:
            return hosts.run(testbed, ENGINE, [sys.executable, str(SCRIPT), str(path)]) == 0
        finally:
            guard.cancel()


def finished(job: Job, runs: Path) -> list[dict]:
    """What was measured in the finished cases of a job."""
    paths = [runs / job.name / case["file"] for case in cases_of(job)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def tidy(jobs: list[Job], runs: Path) -> pd.DataFrame:
    """One row for each method of each finished case."""
    table = pd.DataFrame(
        row
        for job in jobs
        for found in finished(job, runs)
        for row in rows_of(job, load(runs / job.name / PROFILE), found)
    )
    return table.assign(predicted_commit=commit())


def rows_of(job: Job, profile: dict, found: dict) -> Iterator[dict]:
    """The predicted and the measured iteration of each method in a case."""
    case, seconds = found["case"], found["seconds"]
    alone_s, recorded_alone_s = repeatable(seconds[ALONE]).value, job_advice.read_job(profile).alone_s
    speed, slowdown = alone_s / recorded_alone_s, 1.0
    if case["workers"] > found["cores"]:  # so they compute more slowly, as they would not on machines of their own
        slowdown = speed
    there = Network(case["workers"], case["rate_mbit"], case["latency_ms"])
    network = f"{there.workers} workers, {there.rate_mbit:g} Mb/s"
    kind = f"{there.workers} workers" if there.workers > 2 else "other rates"
    if there.latency_ms:
        network, kind = f"{network}, {there.latency_ms:g} ms", f"{there.latency_ms:g} ms of latency"
    predicted, at_speed = (predictions(profile, there, factor) for factor in (slowdown, speed))
    for name, (title, predicted_s) in predicted.items():
        own, at_speed_s = repeatable(seconds[name]), at_speed[name][1]
        yield {
            "case": f"{job.name}, {network}", "kind": kind, "model": job.model, "script": job.script,
            "workers": there.workers, "rate_mbit": there.rate_mbit, "latency_ms": there.latency_ms,
            "recorded_mbit": job.rates_mbit[0], "method": name, "title": title,
            "predicted_s": predicted_s, "at_speed_s": at_speed_s,
            "measured_s": own.value, "measured_s_low": own.low, "measured_s_high": own.high,
            "error": predicted_s / own.value - 1, "at_speed_error": at_speed_s / own.value - 1,
            "blocks": len(seconds[name]), "alone_s": alone_s, "recorded_alone_s": recorded_alone_s,
            "slowdown": slowdown, "machine": found["machine"], "date": found["date"][:10], "commit": found["commit"],
        }  # fmt: skip


def predictions(profile: dict, there: Network, slowdown: float) -> dict[str, tuple[str, float]]:
    """Method -> its title and predicted iteration. Uncompressed was measured with the script's own buckets."""
    known = {model.name: model for model in job_advice.script_models(profile, slowdown=slowdown)}
    known[UNCOMPRESSED] = known.pop(job_advice.SCRIPT, known[UNCOMPRESSED])
    return {
        name: ("uncompressed" if name == UNCOMPRESSED else model.title, model.iteration_s(there))
        for name, model in known.items()
    }


def probes(jobs: list[Job], runs: Path) -> pd.DataFrame:
    """For each recorded job: whether the weights kept their bits, and ``overhead``, an iteration while the probe
    records, divided by an iteration without the probe."""
    rows = []
    for job in jobs:
        path, cases = runs / job.name / PROBE, finished(job, runs)
        pairs = [zip(*map(own["seconds"].get, (RECORDING, UNCOMPRESSED)), strict=True)
                 for own in cases if RECORDING in own["seconds"]]  # fmt: skip
        if path.exists() and pairs:
            ratios = [recording / plain for own in pairs for recording, plain in own]
            equal, overhead = json.loads(path.read_text(encoding="utf-8"))["equal_bits"], repeatable(ratios)
            row = {"job": job.name, "recorded_mbit": job.rates_mbit[0], "equal_bits": equal, "blocks": len(ratios)}
            ends = {"overhead_low": overhead.low, "overhead_high": overhead.high}
            rows.append(row | {"overhead": overhead.value} | ends)
    return pd.DataFrame(rows)


def first_choices(table: pd.DataFrame) -> pd.Series:
    """For each case: the iteration of the method that was predicted to be the fastest, divided by the fastest."""
    by_case = table.groupby("case", sort=False)
    chosen = table.loc[by_case["predicted_s"].idxmin()].set_index("case")["measured_s"]
    return chosen / by_case["measured_s"].min()


def tie_factor(table: pd.DataFrame) -> float:
    """The factor within which 9 of 10 predicted ratios of a method to the first choice of its case are right."""
    chosen = table.groupby("case")["predicted_s"].idxmin()
    others = table.drop(index=chosen)
    first = table.loc[chosen].set_index("case").loc[others["case"]]
    ratios = {
        "predicted_speedup": others["predicted_s"].to_numpy() / first["predicted_s"].to_numpy(),
        "speedup": others["measured_s"].to_numpy() / first["measured_s"].to_numpy(),
    }
    return advice.margin(pd.DataFrame(ratios))


def ties(table: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The methods that are predicted to be within a factor of the first choice of their case."""
    return table[table["predicted_s"] <= factor * table.groupby("case")["predicted_s"].transform("min")]


def summary(table: pd.DataFrame, probed: pd.DataFrame) -> str:
    """What the tables say, in sentences."""
    worst, choices = table.loc[table["error"].abs().idxmax()], first_choices(table)
    jobs = table.groupby(["model", "script"]).ngroups
    tied, factor = ties(table, TIED), tie_factor(table)
    fastest = tied.groupby("case")["measured_s"].min() / table.groupby("case")["measured_s"].min()
    speeds = (table["alone_s"] / table["recorded_alone_s"])[table["slowdown"] == 1]
    text = (
        f"{len(table)} iterations in {len(choices)} cases were predicted, from one profile for each of {jobs} jobs. "
        f"Error of the prediction: {captions.off(table, 'error')} ({worst['title']}, {worst['case']}). "
        f"The first choice was within 5 % of the fastest method in {(choices <= CLOSE).sum()} of {len(choices)} cases. "
        f"In the worst case it took {choices.max():.2f} times as long. "
        f"9 of 10 predicted ratios of a method to the first choice were right within a factor of {factor:.2f}. "
        f"Methods within a factor of {TIED} of the first choice cannot be told apart. In the mean, these are "
        f"{len(tied) / len(choices):.1f} of {len(table) / len(choices):.0f} methods. "
        f"In {(fastest <= CLOSE).sum()} of {len(choices)} cases one of them is within 5 % of the fastest. "
        f"Computing alone took {speeds.min():.2f} to {speeds.max():.2f} times as long as in the recording, "
        "in the cases with at most as many workers as cores. "
        f"With computing as fast as it was in each case, the error is: {captions.off(table, 'at_speed_error')}."
    )
    if len(probed):
        ratios = probed["overhead"]
        text += (
            f" While the probe records, an iteration takes {ratios.median():.3f} times as long (median of "
            f"{len(probed)} jobs, {ratios.min():.3f} to {ratios.max():.3f}). The weights kept their bits in "
            f"{probed['equal_bits'].sum()} of {len(probed)} jobs."
        )
    return text


def errors_by(table: pd.DataFrame, key: str, title: str) -> str:
    """The errors of the cases with the same ``key``, as a table. ``title``: of its first column."""
    rows = []
    for value, own in table.groupby(key, sort=False):
        choices, off = first_choices(own), captions.off(own, "error")
        good = f"{(choices <= CLOSE).sum()} of {len(choices)}"
        rows.append({title: value, "Iterations": len(own), "Error": off, "First choice within 5 %": good})
    return markdown(rows)


def by_part(table: pd.DataFrame) -> list[str]:
    """The errors by kind of case and by job, as tables."""
    jobs = table.assign(job=table["model"] + "-" + table["script"])
    return [errors_by(table, "kind", "Cases"), errors_by(jobs, "job", "Job")]


def page(table: pd.DataFrame, probed: pd.DataFrame) -> str:
    """profiles.md: all cases."""
    rows = [
        {
            "Case": row["case"], "Recorded (Mb/s)": f"{row['recorded_mbit']:g}", "Method": row["title"],
            "Predicted (ms)": tables.number(1e3 * row["predicted_s"]),
            "At the case's speed (ms)": tables.number(1e3 * row["at_speed_s"]),
            "Measured (ms)": tables.spread(row, "measured_s", 1e3, 0 if row["measured_s"] >= 0.1 else 1),
            "Error": f"{100 * row['error']:+.0f} %", "n": row["blocks"],
        }
        for row in table.to_dict("records")
    ]  # fmt: skip
    recorded = [
        {"Job": row["job"], "Recorded (Mb/s)": f"{row['recorded_mbit']:g}",
         "Same weights": "yes" if row["equal_bits"] else "no",
         "Iteration while recording / without": tables.spread(row, "overhead", digits=3), "n": row["blocks"]}
        for row in probed.to_dict("records")
    ]  # fmt: skip
    words = f"n: blocks. Brackets: {captions.REPEAT}, from n = 3 on. {note(table)}."
    return "\n\n".join([summary(table, probed), *by_part(table), markdown(rows), words, markdown(recorded)]) + "\n"


def markdown(rows: list[dict]) -> str:
    return pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True)


def note(table: pd.DataFrame) -> str:
    rates, blocks = (captions.least_to_most(table[key]) for key in ("rate_mbit", "blocks"))
    return (
        f"{' / '.join(table['machine'].unique())}; testbed, links of {rates} Mb/s; {ENGINE}, one thread per worker; "
        f"n = {blocks} blocks{captions.when(table)}"
    )


def draw(table: pd.DataFrame, folder: Path) -> None:
    """A panel for each kind of case: measured over predicted."""
    names = Names(dict(zip(table["method"], table["title"], strict=True)), {})
    kinds = list(table["kind"].unique())
    figure, panels = style.panels(len(kinds), 3.6, 3.4)
    both = 1e3 * table[["predicted_s", "measured_s"]].to_numpy()
    limits = np.array([both.min() / 1.3, both.max() * 1.3])
    for axes, kind in zip(panels, kinds, strict=True):
        axes.fill_between(limits, limits / BAND, limits * BAND, color="0.9", zorder=0)
        axes.plot(limits, limits, color="0.3", linewidth=0.8)
        for method in names.variants:
            rows = table[(table["kind"] == kind) & (table["method"] == method)]
            style.measured(axes, style.of_variant(method, names), 1e3 * rows["predicted_s"], rows, "measured_s", 1e3)
        axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=kind)
        axes.set(xlabel="predicted iteration (ms)", ylabel="measured iteration (ms)")
        for axis in (axes.xaxis, axes.yaxis):
            style.plain_log(axis, subs=(1, 3))
        style.open_frame(axes)
    style.legend(figure, *panels[0].get_legend_handles_labels())
    files = {kind: folder / f"profiles.{kind}" for kind in ("svg", "png")}
    parts = {"output": SimpleNamespace(**files), "params": SimpleNamespace(caption=CAPTION)}
    style.save(figure, note(table), SimpleNamespace(**parts))
    style.plt.close(figure)


def readme(table: pd.DataFrame, probed: pd.DataFrame, folder: Path) -> str:
    """The page of the folder."""
    parts = "\n\n".join(by_part(table))
    return f"""# Predictions from one profile, compared with measurements

`python bench/profiles.py {folder.as_posix()} --budget-s 1500` measured these cases and wrote this folder. It needs a
testbed (`dlgs-bench check-testbed`). All cases are in [profiles.md](profiles.md) and [profiles.csv](profiles.csv). What
the probe costs is in [probe.csv](probe.csv).

{summary(table, probed)}

{parts}

![Measured over predicted iterations](profiles.svg)

{" ".join(CAPTION.split())} {note(table)}.

## How a case is measured

- **Scripts.** `bench/profiles_script.py` is an ordinary training script with random data, under
  DistributedDataParallel with its default buckets, or under Accelerate. `DDPHook` adds a method with the parameters
  that the profile has.
- **Recording.** Two workers record a profile at one link rate. A script without the probe trains from the same seed,
  and we compare the weights.
- **Timing.** Uncompressed, the methods, and an iteration without an exchange take turns. A block has {REPEATS} steps of
  each phase of a method. The first block is a warm-up. Methods start with the residuals of a long training.
- **The probe.** At the highest rate, iterations while the probe records are one more turn.

## How the predictions were made

The cases were measured with commit {table["commit"].iloc[0]}, and predicted with the time model of commit
{table["predicted_commit"].iloc[0]}, from the same profiles. What is [added to the paper's time
model](../../docs/time-model.md#from-a-profile-of-a-job) was found on three jobs: mobilenet_v2, vgg16 and
language_model. The other jobs were held out. No cost was fitted to these cases, but the factor within which methods
cannot be told apart was computed from them.

## What limits the comparison

- **Shared cores.** More workers than cores compute more slowly than in the recording. The time model gets this measured
  factor (column `slowdown`) for computing and selection.
- **The speed of the machine.** It changed between the recording and the cases. The column `at_speed_s` is the
  prediction with computing as fast as in the same case without an exchange, which is also measured in few blocks.
- **Buffers.** A profile of version 1 does not contain the bytes of the buffers that DistributedDataParallel broadcasts
  in each forward pass, so a prediction from it does not contain the broadcast.
- **Drift of DLGS.** The scripts train on the same batch in each step. A fixed threshold then sends more or fewer
  entries than in the probe, which draws a new gradient for each step.
- **One machine.** All workers share one machine without a GPU.
"""


def write(jobs: list[Job], runs: Path, folder: Path) -> None:
    """The tables, the figure and the pages, from the finished cases."""
    table, probed = tidy(jobs, runs), probes(jobs, runs)
    if table.empty:
        print("No case is finished, so there is nothing to write.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "profiles.csv", index=False, float_format="%.5g")
    probed.to_csv(folder / "probe.csv", index=False, float_format="%.5g")
    (folder / "profiles.md").write_text(page(table, probed), encoding="utf-8")
    (folder / "README.md").write_text(readme(table, probed, folder), encoding="utf-8")
    draw(table, folder)
    print(summary(table, probed))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the tables, the figure and the pages are written")
    parser.add_argument("--budget-s", type=float, required=True, help="seconds for everything; 0: measure nothing")
    names = [job.name for job in JOBS]
    parser.add_argument("--jobs", nargs="+", choices=names, default=names, help="the jobs to measure and to show")
    asked = parser.parse_args(arguments)
    if asked.budget_s > 0 and (why := why_unavailable(LATENCY_MS)):
        parser.error(f"no testbed here: {why}; try dlgs-bench check-testbed, or --budget-s 0")
    jobs = [job for job in JOBS if job.name in asked.jobs]
    os.environ.update(ENGINES[ENGINE].environment(threads=1))
    worked = measure_all(jobs, RUNS, asked.budget_s)
    write(jobs, RUNS, asked.folder)
    return 0 if worked else 1


if __name__ == "__main__":
    sys.exit(main())
