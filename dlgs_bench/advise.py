"""Predict whether compressing gradients pays for a job, from a profile that dlgs_bench.probe recorded in the job.

Example: dlgs-bench advise profile.json --workers 64 --link-mbit 25000
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlgs_bench import figure_file, looks
from dlgs_bench.errors import OneLineParser, short_repr
from dlgs_bench.timemodel import job_advice, trained
from dlgs_bench.timemodel.checked_range import CHECKED, SPEEDUP_FACTOR, TIED
from dlgs_bench.timemodel.iterations import COMPUTING, LIMITS, REACHED, verdict
from dlgs_bench.timemodel.job_advice import MOST_LOCAL_STEPS, Job, JobModel
from dlgs_bench.timemodel.job_profile import FEW_STEPS, load
from dlgs_bench.timemodel.links import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROGRAM = "dlgs-bench advise"
BAR = 50  # characters of the longest bar
MOST_BARS = 10  # methods with a bar, next to uncompressed
MBIT_PER_GBYTE = 8000
MOST_WORKERS = 10**6
MOST_NAMED = 4  # methods in the sentence of those that cannot be distinguished
RATES_SHOWN = 40  # points of a line in the figure
LONGEST_BAR = 1.5  # times uncompressed's iteration; longer bars are cut, because they would make all others short
LEGEND_COLUMNS = 5
CAPTION = (
    "Advice for a job. Predicted iterations of each method in parts, utilisation over the rate of the links, and "
    "utilisation over the number of local steps."
)
UNSTEADY = 2.0  # 90th percentile of the recorded iterations divided by the 10th
MARK_EVERY = 8  # points between two markers of a line


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the advice; the exit status: 0, or 2 for a bad profile or option, which ends in one line."""
    given = _parser().parse_args(arguments)
    try:
        profile, job_models, there = asked(given)
        if given.figure:
            figure_file.check(given.figure)
        print(_report(profile, job_models, there, given.speed_up))
        if given.figure:
            figure_file.write(given.figure, lambda: draw(job_models, there), CAPTION)
            print(f"\nThe figure is in {given.figure}.")
    except ValueError as error:
        print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    summary, example = (__doc__ or "").split("\n\n")
    parser = OneLineParser(prog=PROGRAM, description=summary, epilog=example, allow_abbrev=False)
    add_questions(parser)
    speedup = "show for each method the link rate below which it has this speed-up over uncompressed (default: 1)"
    parser.add_argument("--speed-up", type=_speedup, default=1.0, metavar="X", help=speedup)
    figure_file.add_option(parser)
    return parser


def add_questions(parser: argparse.ArgumentParser) -> None:
    """Add the options for the profile, the network and the methods."""
    parser.add_argument("profile", help="the file that dlgs_bench.probe.record wrote")
    parser.add_argument("--workers", type=_workers, help="number of workers; the recorded number if not given")
    link = parser.add_mutually_exclusive_group()
    rate = "rate of a worker's link in megabits per second; the recorded rate if not given"
    link.add_argument("--link-mbit", type=_rate, metavar="MBIT", help=rate)
    link.add_argument("--link-gbyte-s", type=_rate, metavar="GBYTE", help="the same in gigabytes per second")
    latency = "one-way latency between two hosts in milliseconds, added to the recorded network's latency (default: 0)"
    parser.add_argument("--latency-ms", type=_latency, default=0.0, metavar="MS", help=latency)
    methods = "methods to compare, separated by commas; all methods in the profile if not given"
    parser.add_argument("--methods", metavar="A,B", help=methods)


def asked(
    given: argparse.Namespace, models: Callable[..., list[JobModel]] = job_advice.script_models, slowdown: float = 1.0
) -> tuple[dict, list[JobModel], Network]:
    """The profile, the models and the network that the options ask about; ValueError in one line if one is wrong.

    ``models``: makes the models of a profile.
    """
    profile = load(given.profile)
    names = [name.strip() for name in given.methods.split(",")] if given.methods is not None else None
    try:
        job_models = models(profile, names, slowdown)
    except ValueError as error:
        raise ValueError(f"{given.profile}: {error}") from None
    return profile, job_models, _network(given, job_models[0].job.here)


def _number(text: str, expected: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= 1e9:
        raise argparse.ArgumentTypeError(f"{short_repr(text)} is not {expected}")
    return value


def _rate(text: str) -> float:
    return _number(text, "a rate from 1e-6 to 1e9, without a unit, such as 10000", 1e-6)


def _speedup(text: str) -> float:
    return _number(text, "a speed-up from 1 to 1e9", 1.0)


def _latency(text: str) -> float:
    return _number(text, "a number of milliseconds from 0 to 1e9", 0.0)


def _workers(text: str) -> int:
    expected = f"a whole number from 2 to {MOST_WORKERS}"
    value = _number(text, expected, 2)
    if value > MOST_WORKERS or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{short_repr(text)} is not {expected}")
    return int(value)


def _network(given: argparse.Namespace, here: Network) -> Network:
    """The network that is asked about; the recorded one where nothing is given."""
    rate = given.link_mbit
    if given.link_gbyte_s is not None:
        rate = given.link_gbyte_s * MBIT_PER_GBYTE
    workers = here.workers if given.workers is None else given.workers
    if workers == 1:
        missing = "--workers" if rate is not None or math.isfinite(here.rate_mbit) else "--workers and --link-mbit"
        raise ValueError(f"{given.profile}: job.workers: 1 worker exchanges nothing; give {missing}")
    if rate is None and not math.isfinite(here.rate_mbit):
        raise ValueError(f"{given.profile}: network: it does not contain the rate of the links; give --link-mbit")
    return Network(workers, here.rate_mbit if rate is None else rate, given.latency_ms)


def _report(profile: dict, job_models: Sequence[JobModel], there: Network, speedup: float = 1.0) -> str:
    dense = job_models[0]
    factor, reasons = job_advice.interval(job_models, there)
    rows = job_advice.rank(job_models, there, factor)
    parts = [
        _introduction(profile, job_models, there),
        _sentence(rows, job_models, there),
        _ranking(rows),
        bars(rows, dense.job.alone_s),
        _accuracies(rows),
        _inverse(job_models, there, speedup),
        _local_steps(dense, there),
        _unknown(profile["job"], job_models, there),
    ]
    if left_out := _left_out(profile, job_models):
        parts.append(left_out)
    if (steps := profile["job"]["steps"]) < FEW_STEPS:
        parts.append(f"Warning: steps: {steps} recorded, so the medians are uncertain; record at least {FEW_STEPS}.")
    if unsteady := _unsteady(profile["times"]["iteration"]):
        parts.append(unsteady)
    if shared := _shared_cores(profile["job"]):
        parts.append(shared)
    if inside := _inside_links(profile["job"], dense.job, there):
        parts.append(inside)
    if reasons:
        parts.append(
            f"Warning: the estimate is less reliable than where it was checked: {'; '.join(reasons)}. The intervals "
            f"are widened to a factor of {factor:.2f}, which is an assumption."
        )
    return "\n\n".join(filter(None, parts))


def _unsteady(iteration: dict) -> str:
    """A warning if the recorded iterations differ much; "" if they do not."""
    low, high = (iteration[f"{end}_s"] for end in ("low", "high"))
    if high < UNSTEADY * low:
        return ""
    return (
        f"Warning: the recorded iterations took {ms(low)} to {ms(high)} ms (10th to 90th percentile), so the medians "
        "are uncertain; record again with more steps, and nothing else running."
    )


def _left_out(profile: dict, job_models: Sequence[JobModel]) -> str:
    """The methods that the probe did not measure, with the reasons; "" if only chosen methods are compared."""
    compared = {model.name for model in job_models}
    if any(method["name"] not in compared for method in profile["methods"]):
        return ""
    by_reason: dict[str, list[str]] = {}
    for name, reason in profile["left_out"].items():
        by_reason.setdefault(" ".join(reason.split()), []).append(name)
    if not by_reason:
        return ""
    listed = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return f"The probe did not measure: {listed}."


def _shared_cores(job: dict) -> str:
    """A warning if no core was free to send and receive while the workers of a machine computed."""
    machine, threads = job["machine"], job["threads"]
    if job["device"] != "cpu" or not machine or machine["workers"] == 1:
        return ""
    if machine["workers"] * threads < machine["cores"]:
        return ""
    return (
        f"Warning: workers share cores: {machine['workers']} workers with {threads} thread(s) each were recorded on a "
        f"machine with {machine['cores']} cores. So exchanges slowed their computing, and every prediction contains "
        "this. Workers on machines of their own compute faster; more workers on this machine compute more slowly."
    )


def _inside_links(described: dict, job: Job, there: Network) -> str:
    """A warning if more workers than one machine had are predicted over the links inside it."""
    machine = described["machine"]
    inside = machine and machine["workers"] >= job.here.workers > 1
    if not inside or there.workers <= job.here.workers or there.rate_mbit != job.here.rate_mbit:
        return ""
    return (
        f"Warning: {there.workers} workers are predicted over the links that {job.here.workers} workers have inside "
        "one machine; if they are on several machines, give the rate of the links between them (--link-mbit)."
    )


def _introduction(profile: dict, job_models: Sequence[JobModel], there: Network) -> str:
    job, described = job_models[0].job, profile["job"]
    lines = [
        f"The job: {len(job.sizes)} tensors, {sum(job.sizes):,} entries, on {described['device_name']}. "
        f"An iteration computes for {ms(job.alone_s)} ms.",
        f"The network: {there.workers} workers, links of {mbit(there.rate_mbit)}"
        + (f", {there.latency_ms:g} ms more latency than in the recording." if there.latency_ms else "."),
    ]
    if interfaces := (described["machine"] or {}).get("interfaces"):
        rates = ", ".join(f"{row['name']} {mbit(row['mbit'])}" for row in interfaces)
        lines.append(f"The network interfaces of the machine that recorded: {rates}.")
    if described["kind"] == "hsdp":
        lines.append("Hybrid sharding: a worker is one replica, and the tensors belong to one of its shards.")
    steps = f"{described['steps']} steps"
    if described["passes"] > 1:
        steps += f" of {described['passes']} passes"
    if job.here.workers == 1:
        lines.append(f"Recorded: one process, {steps}, {ms(job.recorded_s)} ms per iteration.")
    else:
        rate = f"links of about {mbit(job.here.rate_mbit)}" if math.isfinite(job.here.rate_mbit) else "fast links"
        explained_s = job_advice.explained_s(job_models)
        lines.append(
            f"Recorded: {job.here.workers} workers, {rate}, {steps}, {ms(job.recorded_s)} ms per iteration. The time "
            f"model gives {ms(explained_s)} ms uncompressed there."
        )
        if (described["machine"] or {}).get("workers") == job.here.workers:
            lines[-1] += " All workers were on one machine, so these links are inside it."
        if job.unexplained_s:
            lines[-1] += f" The difference of {ms(job.unexplained_s)} ms counts as computing in every prediction."
    return "\n".join(lines)


def _ranking(rows: Sequence[dict]) -> str:
    cells = [["Method", "Iteration (ms)", "Speed-up", "Limited by", "Without this limit (ms)"]]
    for row in rows:
        without = "" if math.isnan(row["limit_s"]) else ms(row["iteration_s"] - row["limit_s"])
        cells.append([row["label"], ms(row["iteration_s"]), _gain(row), LIMITS[row["limit"]], without])
    return table(cells)


def _sentence(rows: Sequence[dict], job_models: Sequence[JobModel], there: Network) -> str:
    best = next((row for row in rows if row["name"] not in job_advice.DENSE_NAMES), None)
    dense = next(row for row in rows if row["name"] == job_advice.UNCOMPRESSED)
    if best is None:
        return "The profile has no method that compresses: record it with methods to compare."
    begin = {
        "pays": "Compressing pays",
        "does not pay": "Compressing does not pay",
        "cannot be told": "Whether compressing pays cannot be told, because the interval contains 1",
    }[verdict(best["gain_low"], best["gain_high"])]
    lines = [
        f"{begin}: the fastest method that compresses ({best['label']}) is predicted to be {_gain(best)} times as "
        f"fast as uncompressed at its best buckets ({ms(best['iteration_s'])} instead of {ms(dense['iteration_s'])} ms "
        "per iteration)."
    ]
    if runs := trained.runs(best["name"], best["options"]):
        reached = "; ".join(f"{run.model}, {run.measure} {run.text}" for run in runs)
        lines.append(f"In this project's runs, this method reached (in brackets: uncompressed): {reached}.")
    if mib := job_advice.bucket_mib(job_models, there):
        lines.append(f"With bucket_cap_mb={mib:g}, uncompressed is faster than with the script's own buckets.")
    tied = [
        row["label"]
        for row in rows
        if row["name"] != job_advice.SCRIPT and row["iteration_s"] <= TIED * rows[0]["iteration_s"]
    ]
    if len(tied) > 1:
        named = "; ".join(tied[:MOST_NAMED])
        if more := tied[MOST_NAMED:]:
            named += f"; and {len(more)} more" + (", with uncompressed" if dense["label"] in more else "")
        lines.append(f"These cannot be distinguished, because they are within a factor of {TIED}: {named}.")
    return "\n".join(lines)


def bars(rows: Sequence[dict], alone_s: float) -> str:
    """A bar chart of the iterations of uncompressed and of the fastest methods, in characters."""
    longest = _longest_bar_s(rows)
    slower = [row for row in rows if row["name"] not in job_advice.DENSE_NAMES][MOST_BARS:]
    rows = [row for row in rows if row not in slower]
    width = max(len(row["label"]) for row in rows)
    lines = ["One iteration: # computing, - exchange and selection"]
    for row in rows:
        # One character too many is enough to cut a bar, however long it would be.
        computing, whole = (round(min(BAR + 1, BAR * s / longest)) for s in (alone_s, row["iteration_s"]))
        bar = ("#" * computing).ljust(whole, "-")
        shown = bar if whole <= BAR else bar[: BAR - 2] + ">>"
        lines.append(f"{row['label']:<{width}} {shown} {ms(row['iteration_s'])}")
    if any(row["iteration_s"] > longest for row in rows):
        lines.append(">> continues: the bar is cut")
    if slower:
        lines.append(f"Methods without a bar, because they are slower: {len(slower)}.")
    return "\n".join(lines)


def _longest_bar_s(rows: Sequence[dict]) -> float:
    """The iteration of the longest bar that is drawn whole."""
    dense_s = next(row["iteration_s"] for row in rows if row["name"] == job_advice.UNCOMPRESSED)
    return min(max(row["iteration_s"] for row in rows), LONGEST_BAR * dense_s)


def _accuracies(rows: Sequence[dict]) -> str:
    """How well the methods learnt where this project trained them."""
    methods = [row for row in rows if row["name"] not in job_advice.DENSE_NAMES]
    known = {row["label"]: trained.runs(row["name"], row["options"]) for row in methods}
    every = [run for runs in known.values() for run in runs]
    if not every:
        return ""
    headings = sorted({f"{run.model}, {run.measure}" for run in every})
    cells = []
    for label, runs in known.items():
        texts = {f"{run.model}, {run.measure}": run.text for run in runs}
        cells.append([label, *(texts.get(heading, "") for heading in headings)])
    seeds = " to ".join(map(str, sorted({min(run.seeds for run in every), max(run.seeds for run in every)})))
    return (
        "What the methods reached in this project's runs, not in your job (in brackets: uncompressed):\n"
        f"{table([['Method', *headings], *cells])}\n"
        f"Seeds: {seeds}. Learning rates were not tuned for each method. Few epochs show only how training starts."
    )


def _inverse(job_models: Sequence[JobModel], there: Network, speedup: float = 1.0) -> str:
    low, high = CHECKED["Mb/s"]

    def marked(rate: float) -> str:
        return mbit(rate) if low <= rate <= high else f"{mbit(rate)} *"

    def over(slowest: float, fastest: float) -> str:
        if not slowest > 0:
            return below(fastest)
        return f"only above {marked(slowest)}" + ("" if fastest == math.inf else f", below {marked(fastest)}")

    def below(rate: float) -> str:
        return "" if math.isnan(rate) else {0.0: "never", math.inf: "any"}.get(rate) or marked(rate)

    faster = "Pays below" if speedup == 1 else f"{speedup:g} times as fast below"
    cells = [["Method", f"Link rate for {REACHED:.0%} computing", faster, f"Whole interval above {speedup:g} below"]]
    for row in job_advice.inverse(job_models, there, speedup):
        none = "no link is enough" + ("" if row["limit"] == COMPUTING else f": {LIMITS[row['limit']]}")
        needed = {0.0: "any", math.inf: none}.get(row["needed_mbit"]) or marked(row["needed_mbit"])
        pays = over(row["faster_above_mbit"], row["faster_below_mbit"])
        cells.append([row["label"], needed, pays, below(row["interval_below_mbit"])])
    text = f"Which links {there.workers} workers need:\n{table(cells)}"
    if any(" *" in cell for cells_of_row in cells for cell in cells_of_row):
        text += f"\n* Outside the rates that were checked, {low:g} to {high:g} Mb/s, so less reliable."
    return text


def _local_steps(dense: JobModel, there: Network) -> str:
    cells = [["Computing", "Local steps", "Exchange every (s)"]]
    beyond = []
    for row in job_advice.local_steps_rows(dense.job, there):
        used, steps = f"{row['utilisation']:.0%}", row["steps"]
        if steps > MOST_LOCAL_STEPS:
            rate = row["most_mbit"]
            links = "no link is enough" if rate == math.inf else f"links of {mbit(rate)} are needed"
            beyond.append(f"for {used}, {links}")
        mark = " *" if steps > MOST_LOCAL_STEPS else ", not needed" if steps == 1 else ""
        cells.append([used, f"{steps:,}{mark}", f"{row['cycle_s']:,.3g}"])
    text = (
        f"Local steps between two exchanges of weights (as in DiLoCo), for {there.workers} workers and links of "
        f"{mbit(there.rate_mbit)}:\n{table(cells)}"
    )
    if beyond:
        text += (
            f"\n* More than the {MOST_LOCAL_STEPS} local steps of DiLoCo's authors. With {MOST_LOCAL_STEPS}: "
            f"{'; '.join(beyond)}."
        )
    return text


def _unknown(described: dict, job_models: Sequence[JobModel], there: Network) -> str:
    job = job_models[0].job
    facts = [
        "how intervals were checked: an earlier version of the time model predicted 50 speed-ups from calibrations on "
        f"CPUs; 9 of 10 were within a factor of {SPEEDUP_FACTOR}. In newer checks, 9 of 10 were within a factor of "
        "1.12 to 1.20. In a check of profiles (6 jobs with 2 workers on one CPU machine, n = 3 to 16 blocks), "
        "iterations differed by 3 % in the median and by 18 % at most. The first choice was within 5 % of the fastest "
        "method in 22 of 24 cases. In an earlier check on a slower machine (n = 1 to 5 blocks), "
        "iterations differed by 6 % in the median and by 53 % at most, and the first choice was within 5 % of the "
        "fastest method in 15 of 24 cases",
        "methods: these checks had six. In a check of all methods (ResNet-20, 2 to 4 workers on one machine), 174 of "
        "198 gains were within a factor of 1.34. Methods that make two exchanges for many layers gained 1.4 to 1.9 "
        "times less than predicted, and methods with a constant threshold up to 2.8 times more",
        "accuracy: whether your job reaches the same accuracy in the same number of steps",
        "contention: other traffic on the links" + ("" if job.delays else ", and exchanges that slow computing down"),
    ]
    if any(model.name == job_advice.SCRIPT for model in job_models):
        facts.append(
            "buckets: uncompressed has its best bucket_cap_mb, and methods that merge layers have the script's; with "
            "another one they may be faster"
        )
    if (described["machine"] or {}).get("workers", 1) > 1:
        facts.append(
            "kinds of links: all links count as alike. If a machine has several workers, they share its link to other "
            "machines, and gathers send one message per pair of workers over it, so compression looks better than it is"
        )
    if job.here.workers == 1:
        facts.append("messages: the profile is of one process, so small messages cost only the given latency")
    else:
        if there.rate_mbit > job.here.rate_mbit:
            facts.append(
                "faster links: in the recording, the links count as the only limit of an exchange, so the gain from "
                "faster links may be smaller"
            )
        if there.workers != job.here.workers:
            facts.append("the collective: dense sums count as a ring, gathers as one message from each worker")
    return "\n".join(["Limits of the estimate:", *(f"- {fact}" for fact in facts)])


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.9995 else f"{seconds * 1e3:.3g}"


def mbit(rate: float) -> str:
    return f"{rate:,.0f} Mb/s" if rate >= 99.5 else f"{rate:.3g} Mb/s"


def _gain(row: dict) -> str:
    if row["name"] in job_advice.DENSE_NAMES:
        return f"{row['gain']:.3g}"
    return f"{row['gain']:.2f} [{row['gain_low']:.2f}, {row['gain_high']:.2f}]"


def draw(job_models: Sequence[JobModel], there: Network) -> "Figure":
    """Three panels: the iterations' parts; utilisation over the rate of the links, and over local steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 0.25 * len(job_models) + 3.2), layout="constrained")
    iterations, rates, local_steps = figure.subplots(1, 3)
    _draw_iterations(iterations, job_models, there)
    _draw_rates(rates, job_models, there)
    _draw_local_steps(local_steps, job_models[0].job, there)
    for axes in (iterations, rates, local_steps):
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = (bars + lines for bars, lines in zip(
        iterations.get_legend_handles_labels(), rates.get_legend_handles_labels(), strict=True
    ))  # fmt: skip
    figure.legend(handles, labels, fontsize="small", loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
    return figure


def _draw_iterations(axes: "Axes", job_models: Sequence[JobModel], there: Network) -> None:
    rows, alone_s = job_advice.rank(job_models, there, 1.0), job_models[0].job.alone_s
    titles = [row["label"] for row in rows]
    exchanged = [(row["iteration_s"] - alone_s) * 1e3 for row in rows]
    _, computing, hatch = looks.PARTS["computation"]
    axes.barh(titles, [alone_s * 1e3] * len(rows), color=computing, hatch=hatch, label="computing")
    _, communication, hatch = looks.PARTS["non-overlapped communication"]
    axes.barh(titles, exchanged, left=alone_s * 1e3, color=communication, edgecolor="white", linewidth=0, hatch=hatch,
              label="exchange and selection")  # fmt: skip
    longest_s = _longest_bar_s(rows)
    for place, row in enumerate(rows):
        if row["iteration_s"] > longest_s:
            words = f"{ms(row['iteration_s'])} ms \u2192 "
            label = axes.text(longest_s * 1e3, place, words, ha="right", va="center", fontsize="small")
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
    axes.invert_yaxis()
    axes.set(xlim=(0, longest_s * 1e3), xlabel="predicted time of one iteration (ms)")
    axes.set_title(f"{there.workers} workers, {mbit(there.rate_mbit)}")


def _draw_rates(axes: "Axes", job_models: Sequence[JobModel], there: Network) -> None:
    import numpy as np

    rates = np.geomspace(there.rate_mbit / 100, there.rate_mbit * 100, RATES_SHOWN)
    names = [model.name for model in job_models]
    drawn: Counter[str] = Counter()  # lines of each method: a method can have several ratios
    for model in job_models:
        number = looks.number(model.name, names)
        used = [job_advice.utilisation(model, Network(there.workers, rate, there.latency_ms)) for rate in rates]
        look = looks.line(number, model.label, drawn[model.name])
        axes.plot(rates / 1000, used, **look, markevery=(number % MARK_EVERY, MARK_EVERY))
        drawn[model.name] += 1
    axes.axvspan(*(rate / 1000 for rate in CHECKED["Mb/s"]), color="0.93", zorder=0, label="rates that were checked")
    axes.axvline(there.rate_mbit / 1000, color="0.4", linestyle=":", label="the rate that was asked for")
    axes.axhline(REACHED, color="0.4", linestyle="--", linewidth=0.8, label=f"{REACHED:.0%} of the time computing")
    axes.set(xscale="log", xlabel="rate of every link (Gb/s)", ylabel="part of the time spent computing", ylim=(0, 1))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title("By link rate")


def _draw_local_steps(axes: "Axes", job: Job, there: Network) -> None:
    import numpy as np

    rows = job_advice.local_steps_rows(job, there)
    most = max(MOST_LOCAL_STEPS, *(row["steps"] for row in rows))
    steps = np.geomspace(1, most, RATES_SHOWN)
    color = looks.colour(2)
    axes.plot(steps, [job_advice.local_steps_utilisation(job, there, number) for number in steps], color=color)
    for row in rows:
        place = row["steps"], job_advice.local_steps_utilisation(job, there, row["steps"])
        axes.axhline(row["utilisation"], color="0.4", linestyle="--", linewidth=0.8)
        axes.plot(*place, "o", color=color)
        axes.annotate(f"{row['steps']:,}", place, xytext=(6, -12), textcoords="offset points")
    axes.set(xscale="log", xlabel="local steps between two exchanges of weights", ylim=(0, 1))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title(f"By local steps (DiLoCo), {mbit(there.rate_mbit)}")


if __name__ == "__main__":
    sys.exit(main())
