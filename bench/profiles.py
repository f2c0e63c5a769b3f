"""Whether one recorded profile predicts the same job over other links, with more workers and with latency.

    python bench/profiles.py results/reference-profiles --budget-s 1500

Two workers of an ordinary training script (``profiles_script.py``) record a profile on the testbed, at one link rate.
Then the same script is timed over other networks: uncompressed, and with methods through ``DDPHook``, in turns. The
time model of ``dlgs-bench advise`` predicts every iteration from the one profile.

With ``--all-methods``, all methods that the probe measures are timed instead of five.

Finished cases are stored under results/runs/profiles/<name of the folder> and are not measured again, so the same
command continues a stopped run. The profiles and the times of all blocks are then kept in the folder. With ``--budget-s
0`` the command measures nothing: it predicts the cases of the folder again, and writes its tables, figure and pages.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
from profiles_script import ALONE, ENGINE, METHODS, PROBE, PROFILE, UNCOMPRESSED, keep_overhead

from dlgs_bench.engines import ENGINES
from dlgs_bench.fingerprint import commit
from dlgs_bench.launch import hosts
from dlgs_bench.launch.progress import clock
from dlgs_bench.report import captions, style, tables
from dlgs_bench.report.names import Names
from dlgs_bench.stats import Estimate, repeatable
from dlgs_bench.testbed.testbed import Testbed, why_unavailable
from dlgs_bench.timemodel import advice, job_advice
from dlgs_bench.timemodel.checked_range import SPEEDUP_FACTOR, TIED
from dlgs_bench.timemodel.job_profile import load
from dlgs_bench.timemodel.links import Network

RUNS = Path("results/runs/profiles")
SCRIPT = Path(__file__).with_name("profiles_script.py")
MORE_WORKERS, LATENCY_MS = (3, 4), 5.0
MOST_BLOCKS = 16
START_S = 20.0  # until the ranks of a launch can time
LEAST_LAUNCH_S = 40.0  # with less time left, no launch is started
GRACE_S = 60.0  # ranks that have not ended this long after the end of the budget are stopped
CLOSE = 1.05  # a first choice is good if it takes at most this many times as long as the fastest
# The targets: the median and the largest error, the part of good first choices, and the overhead of the probe.
MEDIAN, WORST, GOOD_CHOICES, OVERHEAD_LIMIT = 0.07, 0.25, 0.9, 0.02
OVERHEAD_PAIRS, OVERHEAD_S = 300, 150.0  # pairs of steps, and after how many seconds no other pair is begun
# Files of a kept set. RECORDED is a folder with the profile of each job.
BLOCKS, RECORDED, RECORDINGS, OVERHEAD = "blocks.csv", "recorded", "recordings.csv", "overhead.csv"
GIVEN = ", given the measured slowdown"  # ends the kind of a case with more workers than cores
FACTS = ["machine", "date", "commit"]
BAND = 1.25  # the grey band of the figure
TITLE, PROGRAM = "# Predictions from one profile, compared with measurements", "python bench/profiles.py"
CAPTION = f"""Measured iterations over predicted iterations. One profile of each job, recorded by 2 workers at one link
rate, predicts the job at three other rates, with {LATENCY_MS:g} ms of latency, and with
{" and ".join(map(str, MORE_WORKERS))} workers. The predictions for more workers than cores were given the slowdown of
computing that was measured in the same case.
Whiskers: the 95 % interval of a repeat. Line: prediction and measurement agree. Grey: within a factor of {BAND}."""


@dataclass(frozen=True)
class Job:
    """A model in a kind of script. ``batch``: samples per worker. ``rates_mbit``: the rate of the recording, then the
    rates that are predicted. ``block_s``: the approximate time of a block, by which cases share the budget that is left
    after all starts and recordings. ``steps``: the steps that are recorded. ``recording_s``: the approximate time of a
    recording. ``more_workers``: the numbers of workers above 2 that are predicted. ``methods``: next to uncompressed
    and 16 bits; None for all."""

    model: str
    script: str
    batch: int
    rates_mbit: tuple[float, ...]
    block_s: float
    steps: int
    recording_s: float
    more_workers: tuple[int, ...] = ()
    methods: tuple[str, ...] | None = METHODS

    @property
    def name(self) -> str:
        return f"{self.model}-{self.script}"


JOBS = (
    Job("resnet20", "ddp", 32, (200, 100, 400, 1000), 2, 24, 30, MORE_WORKERS),
    Job("language_model", "accelerate", 8, (300, 150, 600, 1000), 3.5, 16, 50, MORE_WORKERS),
    Job("mobilenet_v2", "ddp", 16, (300, 150, 600, 1000), 2.5, 16, 35, MORE_WORKERS),
    Job("transformer", "ddp", 4, (400, 200, 700, 1000), 5, 12, 60),
    Job("vgg16", "ddp", 16, (400, 200, 700, 1000), 7.5, 12, 75),
    Job("resnet50", "ddp", 4, (500, 400, 700, 1000), 6, 8, 75),
)


def cases_of(job: Job) -> list[dict]:
    """The networks that are predicted, and the file of each."""
    recorded, *others = job.rates_mbit
    networks = [(2, rate, 0.0) for rate in others] + [(2, recorded, LATENCY_MS)]
    networks += [(workers, recorded, 0.0) for workers in job.more_workers]
    return [
        {"workers": workers, "rate_mbit": rate, "latency_ms": latency_ms,
         "file": f"{workers}workers-{rate:g}mbit-{latency_ms:g}ms.json"}
        for workers, rate, latency_ms in networks
    ]  # fmt: skip


def launches(jobs: list[Job], runs: Path) -> list[tuple[Job, list[dict]]]:
    """The unfinished cases, by the testbed that they need. The first ones of a job record its profile.

    Those with more workers come last, so a budget that is too short leaves them out.
    """
    needed = [
        (job, left)
        for job in jobs
        for _, cases in groupby(cases_of(job), lambda case: (case["workers"], case["latency_ms"]))
        if (left := [case for case in cases if not (runs / job.name / case["file"]).exists()])
    ]
    return sorted(needed, key=lambda launch: launch[1][0]["workers"])


def measure_all(jobs: list[Job], runs: Path, budget_s: float) -> bool:
    """Measure the unfinished cases within the budget. Return whether all started ranks succeeded."""
    end, failed, left = time.time() + budget_s, set(), launches(jobs, runs)
    weights = [job.block_s * len(cases) for job, cases in left]
    starts_s, begun = [], {job for job in jobs if (runs / job.name / PROBE).exists()}
    for job, _ in left:
        starts_s.append(START_S if job in begun else START_S + job.recording_s)
        begun.add(job)
    for number, (job, cases) in enumerate(left):
        left_s = end - time.time()
        if left_s < LEAST_LAUNCH_S:
            print(f"The budget is spent before launch {number + 1} of {len(left)}. The same command continues.")
            break
        if job in failed:
            print(f"{job.name}: its other cases are left out", flush=True)
            continue
        networks = ", ".join(f"{case['rate_mbit']:g} Mb/s" for case in cases)
        networks += f", {cases[0]['workers']} workers, {cases[0]['latency_ms']:g} ms"
        print(f"{clock(left_s)} left; launch {number + 1} of {len(left)}: {job.name}, {networks}", flush=True)
        timing_s = max(0.0, left_s - sum(starts_s[number:])) * weights[number] / sum(weights[number:])
        until = min(end, time.time() + starts_s[number] + timing_s)
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


def keep_measured(jobs: list[Job], runs: Path, folder: Path) -> None:
    """Keep the measurements of the finished cases in the folder: profiles, and times by block."""
    blocks, around = [], []
    for job in jobs:
        if not (results := finished(job, runs)):
            continue
        (folder / RECORDED).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(runs / job.name / PROFILE, folder / RECORDED / f"{job.name}.json")
        found = json.loads((runs / job.name / PROBE).read_text(encoding="utf-8"))
        facts = {"job": job.name, "model": job.model, "script": job.script, "recorded_mbit": job.rates_mbit[0]}
        around += [
            facts | {"equal_bits": found["equal_bits"], "block": block, "alone_s": seconds}
            for block, seconds in enumerate(found["alone_s"])
        ]
        for result in results:
            case = {key: result["case"][key] for key in ("workers", "rate_mbit", "latency_ms")}
            facts = {"job": job.name, **case, **{key: result[key] for key in ("data", "cores", *FACTS)}}
            blocks += [
                facts | {"method": name, "density": result["density"].get(name), "block": block, "seconds": value}
                for name, values in result["seconds"].items()
                for block, value in enumerate(values)
            ]
    if blocks:
        pd.DataFrame(blocks).to_csv(folder / BLOCKS, index=False, float_format="%.6g")
        pd.DataFrame(around).to_csv(folder / RECORDINGS, index=False, float_format="%.6g")
    if (runs / OVERHEAD).exists() and folder.exists():
        shutil.copyfile(runs / OVERHEAD, folder / OVERHEAD)


def predict(folder: Path) -> None:
    """Write profiles.csv and probe.csv: the measurements that the folder keeps, and predictions from its profiles."""
    recorded = dict(list(pd.read_csv(folder / RECORDINGS).groupby("job", sort=False)))
    loaded = {name: load(folder / RECORDED / f"{name}.json") for name in recorded}
    keys = ["job", "workers", "rate_mbit", "latency_ms"]
    table = pd.DataFrame(
        row
        for (name, *network), own in pd.read_csv(folder / BLOCKS).groupby(keys, sort=False)
        for row in rows_of(recorded[name], loaded[name], Network(*network), own)
    )
    table = table.assign(predicted_commit=commit())
    table.to_csv(folder / "profiles.csv", index=False, float_format="%.5g")
    probed = [
        {"job": name, "recorded_mbit": rows["recorded_mbit"].iloc[0], "equal_bits": rows["equal_bits"].all(),
         "computing": job_advice.read_job(loaded[name]).alone_s / repeatable(rows["alone_s"]).value}
        for name, rows in recorded.items()
    ]  # fmt: skip
    pd.DataFrame(probed).to_csv(folder / "probe.csv", index=False, float_format="%.5g")


def rows_of(recorded: pd.DataFrame, profile: dict, there: Network, own: pd.DataFrame) -> Iterator[dict]:
    """The predicted and the measured iteration of each method in a case.

    ``recorded``: the job's rows of ``RECORDINGS``. ``own``: the rows of the case in ``BLOCKS``.
    """
    seconds = {name: rows["seconds"].tolist() for name, rows in own.groupby("method", sort=False)}
    density, facts, job = own.groupby("method")["density"].first(), own.iloc[0], recorded.iloc[0]
    alone_s, recorded_alone_s = (repeatable(blocks).value for blocks in (seconds[ALONE], recorded["alone_s"]))
    speed, slowdown = alone_s / recorded_alone_s, 1.0
    # More workers than cores compute more slowly, as they would not on machines of their own. Only these predictions
    # get a number that was measured in the case that they predict.
    given = there.workers > facts["cores"]
    if given:
        slowdown = speed
    network = f"{there.workers} workers, {there.rate_mbit:g} Mb/s"
    kind = f"{there.workers} workers" if there.workers > 2 else "other rates"
    if there.latency_ms:
        network, kind = f"{network}, {there.latency_ms:g} ms", f"{there.latency_ms:g} ms of latency"
    predicted, at_speed = (predictions(profile, there, factor) for factor in (slowdown, speed))
    fastest = min(predicted, key=lambda name: repeatable(seconds[name]).value)
    first = min(predicted, key=lambda name: predicted[name][1])
    predicted_holds, measured_holds = choices_hold({name: seconds[name] for name in predicted}, first)
    for name, (title, predicted_s) in predicted.items():
        measured, at_speed_s = repeatable(seconds[name]), at_speed[name][1]
        over_fastest, gain = (ratio(seconds, *names) for names in ((name, fastest), (UNCOMPRESSED, name)))
        predicted_gain = predicted[UNCOMPRESSED][1] / predicted_s
        yield {
            "case": f"{job['job']}, {network}", "kind": kind + GIVEN if given else kind, "model": job["model"],
            "script": job["script"], "data": facts["data"], "workers": there.workers, "rate_mbit": there.rate_mbit,
            "latency_ms": there.latency_ms, "recorded_mbit": job["recorded_mbit"], "method": name, "title": title,
            "predicted_s": predicted_s, "at_speed_s": at_speed_s,
            "measured_s": measured.value, "measured_s_low": measured.low, "measured_s_high": measured.high,
            "error": predicted_s / measured.value - 1, "at_speed_error": at_speed_s / measured.value - 1,
            "over_fastest": over_fastest.value, "over_fastest_low": over_fastest.low,
            "predicted_gain": predicted_gain, "gain": gain.value, "gain_low": gain.low, "gain_high": gain.high,
            "gain_error": predicted_gain / gain.value - 1 if name != UNCOMPRESSED else math.nan,
            "density": density[name], "blocks": len(seconds[name]),
            "alone_s": alone_s, "recorded_alone_s": recorded_alone_s, "slowdown": slowdown, "slowdown_given": given,
            "predicted_choice_holds": predicted_holds, "measured_choice_holds": measured_holds,
            "machine": facts["machine"], "date": facts["date"][:10], "commit": facts["commit"],
        }  # fmt: skip


def ratio(seconds: dict[str, list[float]], one: str, other: str) -> Estimate:
    """Iterations of ``one`` divided by iterations of ``other`` in the same blocks."""
    return repeatable([own / base for own, base in zip(seconds[one], seconds[other], strict=True)])


def choices_hold(seconds: dict[str, list[float]], first: str) -> tuple[float, float]:
    """How often the predicted choice ``first``, and the fastest method of one block, are good in the other blocks.

    Each block is left out once. A choice is good if its median over the other blocks is within 5 % of the least. NaN
    with fewer than two blocks.
    """
    blocks = len(seconds[first])
    if blocks < 2:
        return math.nan, math.nan
    good = []
    for block in range(blocks):
        others = {name: np.median(np.delete(own, block)) for name, own in seconds.items()}
        fastest_once = min(seconds, key=lambda name: seconds[name][block])
        good.append([others[choice] <= CLOSE * min(others.values()) for choice in (first, fastest_once)])
    predicted, measured = np.mean(good, axis=0)
    return float(predicted), float(measured)


def predictions(profile: dict, there: Network, slowdown: float) -> dict[str, tuple[str, float]]:
    """Method -> its title and predicted iteration. Uncompressed was measured with the script's own buckets."""
    job_models = {model.name: model for model in job_advice.script_models(profile, slowdown=slowdown)}
    job_models[UNCOMPRESSED] = job_models.pop(job_advice.SCRIPT, job_models[UNCOMPRESSED])
    return {
        name: ("uncompressed" if name == UNCOMPRESSED else model.title, model.iteration_s(there))
        for name, model in job_models.items()
    }


def overhead(pairs: pd.DataFrame) -> tuple[float, float]:
    """How much longer a step takes with the probe's hooks, as a part of a step without them: the median of the paired
    differences, and the upper limit of its one-sided 95 % confidence interval.

    The limit is the k-th smallest difference. It is below the true median only if at least k of n differences are,
    which has the probability of at least k heads among n coins. NaN for fewer than 5 pairs.
    """
    parts = np.sort((pairs["with_s"] - pairs["without_s"]) / pairs["without_s"].median())
    below, n = 0.0, len(parts)
    for k in range(1, n + 1):
        below += math.comb(n, k - 1) / 2**n
        if below >= 0.95:
            return float(np.median(parts)), float(parts[k - 1])
    return float(np.median(parts)), math.nan


def first_choices(table: pd.DataFrame) -> pd.DataFrame:
    """For each case: the row of the method that was predicted to be the fastest."""
    return table.loc[table.groupby("case", sort=False)["predicted_s"].idxmin()].set_index("case")


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


def _commits(column: pd.Series) -> str:
    """The commits of a table's rows, in words."""
    return "commit " + " and ".join(column.unique())


def met(reached: bool) -> str:
    return "met" if reached else "missed"


def not_given(table: pd.DataFrame) -> pd.DataFrame:
    """The rows whose predictions were not given a number that was measured in the same case."""
    return table[~table["slowdown_given"]]


def constant_choice(table: pd.DataFrame) -> tuple[str, int]:
    """The title of the method that is within 5 % of the fastest in most cases, and the number of these cases."""
    good = (table["over_fastest"] <= CLOSE).groupby(table["title"], sort=False).sum()
    return good.idxmax(), int(good.max())


def within(table: pd.DataFrame, factor: float) -> tuple[int, int]:
    """The number of gains over uncompressed that differ from their prediction by at most a factor, and of all gains."""
    off = np.abs(np.log1p(table["gain_error"].dropna()))
    return int((off <= math.log(factor)).sum()), len(off)


def summary(everything: pd.DataFrame, probed: pd.DataFrame, pairs: pd.DataFrame | None) -> str:
    """What the tables say, as a list. ``pairs``: of ``overhead``, or None if the set has none."""
    table, given = not_given(everything), of_given(everything[everything["slowdown_given"]])
    lines = given
    if len(table):
        speeds = table["alone_s"] / table["recorded_alone_s"]
        lines = [
            *of_errors(table),
            *of_choices(table),
            *given,
            f"Computing alone took {speeds.min():.2f} to {speeds.max():.2f} times as long as in the recording, "
            "in the cases with at most as many workers as cores.",
        ]
    lines += [
        f"The weights kept their bits in {probed['equal_bits'].sum()} of {len(probed)} jobs while the probe recorded.",
        "Computing in the recorded iterations, while messages are sent, took "
        f"{captions.least_to_most(probed['computing'], 2)} times as long as computing alone.",
        of_overhead(pairs),
    ]
    return "\n".join(f"- {line}" for line in lines)


def of_errors(table: pd.DataFrame) -> list[str]:
    """The errors of predicted times and gains."""
    worst, errors = table.loc[table["error"].abs().idxmax()], table["error"].abs()
    methods, jobs = ", ".join(table["title"].unique()), table.groupby(["model", "script"]).ngroups
    right, gains = within(table, SPEEDUP_FACTOR)
    return [
        f"{len(table)} iterations in {table['case'].nunique()} cases were predicted, from one profile for each of "
        f"{jobs} jobs, with at most as many workers as cores. Methods: {methods}.",
        f"Error of the prediction: median {100 * errors.median():.1f} %, worst {100 * errors.max():.0f} % "
        f"({worst['title']}, {worst['case']}). Targets: median "
        f"{100 * MEDIAN:.0f} % ({met(errors.median() <= MEDIAN)}), worst {100 * WORST:.0f} % "
        f"({met(errors.max() <= WORST)}). With computing as fast as it was in each case: "
        f"{captions.off(table, 'at_speed_error')}.",
        f"Error of the predicted gain over uncompressed: {captions.off(table, 'gain_error')}. Measured gains were "
        f"within a factor of {SPEEDUP_FACTOR} of the prediction in {100 * right / gains:.0f} % (n = {gains}). "
        "`dlgs-bench advise` uses this factor for its intervals.",
    ]


def of_choices(table: pd.DataFrame) -> list[str]:
    """How good the first choices are."""
    chosen = first_choices(table)
    choices, (always, constant) = chosen["over_fastest"], constant_choice(table)
    good, intervals = int((choices <= CLOSE).sum()), int(chosen["over_fastest_low"].notna().sum())
    significant = int((chosen["over_fastest_low"] > CLOSE).sum())
    tied, factor = ties(table, TIED), tie_factor(table)
    fastest = tied.groupby("case")["measured_s"].min() / table.groupby("case")["measured_s"].min()
    return [
        f"The first choice was within 5 % of the fastest method in {good} of {len(choices)} cases "
        f"({100 * good / len(choices):.0f} %). Target: 9 of 10 ({met(good >= GOOD_CHOICES * len(choices))}). In the "
        f"worst case it took {choices.max():.2f} times as long.",
        f"{intervals} of {len(choices)} cases have the three blocks that an interval needs. The first choice was "
        f"significantly more than 5 % slower than the fastest method in {significant} of these {intervals}.",
        f"Baseline: the best constant choice, always {always}, was within 5 % of the fastest method in {constant} of "
        f"{len(choices)} cases. It was chosen after all cases were measured.",
        *against_one_block(chosen),
        f"9 of 10 predicted ratios of a method to the first choice were right within a factor of {factor:.2f}.",
        f"`dlgs-bench advise` takes methods within a factor of {TIED} of the first choice as equal. On average, these "
        f"are {len(tied) / len(choices):.1f} of {len(table) / len(choices):.0f} methods. "
        f"In {(fastest <= CLOSE).sum()} of {len(choices)} cases one of them is within 5 % of the fastest.",
    ]


def of_given(table: pd.DataFrame) -> list[str]:
    """The errors of the predictions that were given the slowdown of their case; empty if there is none."""
    if table.empty:
        return []
    choices = first_choices(table)["over_fastest"]
    (right, gains), (always, constant) = within(table, SPEEDUP_FACTOR), constant_choice(table)
    return [
        f"The other {len(table)} iterations in {len(choices)} cases had more workers than cores. Their predictions "
        "were given the slowdown of computing that was measured in the same case "
        f"({captions.least_to_most(table['slowdown'], 2)}), so they are not predictions as a user gets them: "
        f"{captions.off(table, 'error')}. The first choice was within 5 % of the fastest method in "
        f"{(choices <= CLOSE).sum()} of {len(choices)} cases (always {always}: {constant}). Gains were within a factor "
        f"of {SPEEDUP_FACTOR} in {100 * right / gains:.0f} % (n = {gains})."
    ]


def of_overhead(pairs: pd.DataFrame | None) -> str:
    """What the hooks of the probe cost."""
    if pairs is None:
        return "This set has no measurement of the probe's overhead that can distinguish 2 % from nothing."
    middle, limit = overhead(pairs)
    return (
        f"The hooks of the probe make a step of ResNet-20 in one process {100 * middle:+.2f} % longer (median of "
        f"{len(pairs)} pairs of adjacent steps with and without them). The upper 95 % confidence limit is "
        f"{100 * limit:.2f} %. Target: at most {100 * OVERHEAD_LIMIT:.0f} % ({met(limit <= OVERHEAD_LIMIT)})."
    )


def against_one_block(chosen: pd.DataFrame) -> list[str]:
    """Whether predictions choose as well as one measured block does; empty if no case has two blocks."""
    repeated = chosen.dropna(subset="predicted_choice_holds")
    if repeated.empty:
        return []
    predicted, measured = (100 * repeated[f"{by}_choice_holds"].mean() for by in ("predicted", "measured"))
    return [
        f"Measuring each method once does not always find a fast method either. In the {len(repeated)} cases with at "
        "least two blocks, the fastest method of one block is within 5 % of the fastest in the other blocks in "
        f"{measured:.0f} % of the choices, the predicted method in {predicted:.0f} %."
    ]


def errors_by(table: pd.DataFrame, key: str, title: str) -> str:
    """The errors of the cases with the same ``key``, as a table. ``title``: of its first column."""
    rows = []
    for value, own in table.groupby(key, sort=False):
        choices, off = first_choices(own)["over_fastest"], captions.off(own, "error")
        good = f"{(choices <= CLOSE).sum()} of {len(choices)}"
        at_speed = captions.off(own, "at_speed_error")
        rows.append(
            {title: value, "Iterations": len(own), "Error": off, "Error at the case's speed": at_speed,
             "First choice within 5 %": good}
        )  # fmt: skip
    return markdown(rows)


def by_part(table: pd.DataFrame) -> list[str]:
    """The errors by kind of case; and by job and by method without the cases that were given a slowdown; as tables."""
    own = not_given(table)
    jobs = own.assign(job=own["model"] + "-" + own["script"])
    methods = [
        {"Method": title, "Iterations": len(rows), "Error": captions.off(rows, "error"),
         "Mean error": f"{100 * rows['error'].mean():+.0f} %",
         "Within 5 % of the fastest": f"{(rows['over_fastest'] <= CLOSE).sum()} of {len(rows)}"}
        for title, rows in own.groupby("title", sort=False)
    ]  # fmt: skip
    few = "The next tables contain only the cases with at most as many workers as cores."
    return [errors_by(table, "kind", "Cases"), few, errors_by(jobs, "job", "Job"), markdown(methods)]


def page(table: pd.DataFrame, probed: pd.DataFrame, pairs: pd.DataFrame | None) -> str:
    """profiles.md: all cases."""
    rows = [
        {
            "Case": row["case"], "Recorded (Mb/s)": f"{row['recorded_mbit']:g}", "Method": row["title"],
            "Predicted (ms)": tables.number(1e3 * row["predicted_s"]),
            "Measured (ms)": tables.spread(row, "measured_s", 1e3, 0 if row["measured_s"] >= 0.1 else 1),
            "Error": f"{100 * row['error']:+.0f} %", "At the case's speed": f"{100 * row['at_speed_error']:+.0f} %",
            "n": row["blocks"],
        }
        for row in table.to_dict("records")
    ]  # fmt: skip
    recorded = [
        {"Job": row["job"], "Recorded (Mb/s)": f"{row['recorded_mbit']:g}",
         "Same weights": "yes" if row["equal_bits"] else "no",
         "Computing while messages are sent / alone": f"{row['computing']:.2f}"}
        for row in probed.to_dict("records")
    ]  # fmt: skip
    words = f"n: blocks. Brackets: {captions.REPEAT}, from n = 3 on. {note(table)}."
    parts = [summary(table, probed, pairs), *by_part(table), markdown(rows), words, markdown(recorded)]
    return "\n\n".join(parts) + "\n"


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
        axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, title=kind.replace(", ", ",\n"))
        axes.set(xlabel="predicted iteration (ms)", ylabel="measured iteration (ms)")
        for axis in (axes.xaxis, axes.yaxis):
            style.plain_log(axis, subs=(1, 3))
        style.open_frame(axes)
    style.legend_of(figure, panels)
    files = {kind: folder / f"profiles.{kind}" for kind in ("svg", "png")}
    parts = {"output": SimpleNamespace(**files), "params": SimpleNamespace(caption=CAPTION)}
    style.save(figure, note(table), SimpleNamespace(**parts))
    style.plt.close(figure)


def command(table: pd.DataFrame, probed: pd.DataFrame, folder: Path) -> str:
    """The command that measures the cases of a table again."""
    words = [PROGRAM, folder.as_posix(), "--budget-s 1500"]
    if set(probed["job"]) != {job.name for job in JOBS}:
        words += ["--jobs", *probed["job"]]
    if set(table["method"]) - {UNCOMPRESSED, "cast", *METHODS}:
        words.append("--all-methods")
    return " ".join(words)


def introduction(page: Path) -> str:
    """A page until the command: its title, and what people wrote below. Without a page it is the usual title."""
    return page.read_text(encoding="utf-8").partition(f"`{PROGRAM}")[0] if page.exists() else f"{TITLE}\n\n"


def readme(table: pd.DataFrame, probed: pd.DataFrame, pairs: pd.DataFrame | None, folder: Path) -> str:
    """The page of the folder, without its introduction."""
    parts = "\n\n".join(by_part(table))
    kept = (
        f"The profiles are in `{RECORDED}/`, and the times of all blocks in [{BLOCKS}]({BLOCKS}) and\n"
        f"[{RECORDINGS}]({RECORDINGS}). With `--budget-s 0`, the command predicts the cases again from these files."
        if (folder / BLOCKS).exists()
        else "The profiles and the times of the blocks were not kept, so these cases cannot be predicted again."
    )
    alternating = ""
    if pairs is not None:
        alternating = "- **The probe.** One process trains ResNet-20. Steps with and without its hooks alternate.\n"
    return f"""`{command(table, probed, folder)}` measured these cases and wrote this folder. It
needs a testbed (`dlgs-bench check-testbed`). All cases are in [profiles.md](profiles.md) and
[profiles.csv](profiles.csv), and the jobs in [probe.csv](probe.csv).
{kept}

{summary(table, probed, pairs)}

{parts}

![Measured over predicted iterations](profiles.svg)

{" ".join(CAPTION.split())} {note(table)}.

## How a case is measured

- **Scripts.** `bench/profiles_script.py` is an ordinary training script under DistributedDataParallel with its default
  buckets, or under Accelerate. `DDPHook` adds a method with the parameters that the profile has. Each step has a new
  batch, of the data in column `data`.
- **Recording.** Two workers record a profile at one link rate. A script without the probe trains from the same seed,
  and we compare the weights.
- **Timing.** Uncompressed, the methods, and an iteration without an exchange take turns in the same processes. A block
  has one step of each phase of a method. The first block is a warm-up. Methods start with the residuals of a long
  training. Ratios of two methods are medians of the ratios in the same blocks.
{alternating}
## How the predictions were made

The cases were measured with {_commits(table["commit"])}, and predicted with the time model of
{_commits(table["predicted_commit"])}, from the same profiles. What is [added to the paper's time
model](../../docs/time-model.md#from-a-profile-of-a-job) was found in earlier measurements of mobilenet_v2, vgg16 and
language_model. The work of hooks, the delay of backward by messages and the empty caches before each measurement were
found in earlier checks of the same six jobs. No cost was fitted to the cases here.
The factor of {TIED}, within which methods count as equal, is the larger factor of
[reference-profiles](../reference-profiles/README.md) and
[reference-profiles-avx2](../reference-profiles-avx2/README.md).

## What limits the comparison

- **Shared cores.** More workers than cores compute more slowly than in the recording. The time model gets this factor
  (column `slowdown`) for computing and selection, measured in the same case. So column `slowdown_given` marks these
  cases, and the headline does not contain them. With as many workers as cores, sending and receiving take cores
  from computing. The time model adds the processor time of a worker, if its profile has it, but not the work of the
  kernel for other processes. Column `computing` of `probe.csv` shows the effect in the recording.
- **The speed of the machine.** It changes between the recording and the cases. Iterations without an exchange are timed
  around the recording and in each block of a case. `at_speed_s` is the prediction with computing and selection scaled
  by the ratio of both. `error` is without this factor, as a user would get it, except where `slowdown_given` is true.
- **Latency.** If the kernel has no netem, a program of the testbed forwards all packets in the cases with latency. It
  takes cores from computing.
- **One machine.** All workers share one machine without a GPU.
"""


def write(folder: Path) -> None:
    """Predict the cases that the folder keeps, and write its pages and its figure.

    Sets of earlier versions do not contain the measurements by block. Their pages are written from profiles.csv.
    """
    if (folder / BLOCKS).exists():
        predict(folder)
    elif not (folder / "profiles.csv").exists():
        print("No case is finished, so there is nothing to write.")
        return
    else:
        print(f"{folder / BLOCKS} is missing, so nothing is predicted again.")
    table, probed = (pd.read_csv(folder / name) for name in ("profiles.csv", "probe.csv"))
    pairs = pd.read_csv(folder / OVERHEAD) if (folder / OVERHEAD).exists() else None
    (folder / "profiles.md").write_text(page(table, probed, pairs), encoding="utf-8")
    front = folder / "README.md"
    front.write_text(introduction(front) + readme(table, probed, pairs, folder), encoding="utf-8")
    draw(table, folder)
    print(summary(table, probed, pairs))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the tables, the figure and the pages are written")
    budget = "seconds for everything; 0: predict the kept cases again"
    parser.add_argument("--budget-s", type=float, required=True, help=budget)
    names = [job.name for job in JOBS]
    parser.add_argument("--jobs", nargs="+", choices=names, default=names, help="the jobs to measure and to keep")
    more = "time all methods that the probe measures, instead of " + ", ".join(METHODS)
    parser.add_argument("--all-methods", action="store_true", help=more)
    asked = parser.parse_args(arguments)
    if asked.budget_s > 0 and (why := why_unavailable(LATENCY_MS)):
        parser.error(f"no testbed here: {why}; try dlgs-bench check-testbed, or --budget-s 0")
    methods = None if asked.all_methods else METHODS
    jobs = [replace(job, methods=methods) for job in JOBS if job.name in asked.jobs]
    runs = RUNS / (asked.folder.name + "-all-methods" * asked.all_methods)
    os.environ.update(ENGINES[ENGINE].environment(threads=1))
    worked = True
    if asked.budget_s > 0:
        end = time.time() + asked.budget_s
        if not (runs / OVERHEAD).exists():
            runs.mkdir(parents=True, exist_ok=True)
            keep_overhead(runs / OVERHEAD, OVERHEAD_PAIRS, min(end, time.time() + OVERHEAD_S))
        worked = measure_all(jobs, runs, end - time.time())
        keep_measured(jobs, runs, asked.folder)
    write(asked.folder)
    return 0 if worked else 1


if __name__ == "__main__":
    sys.exit(main())
