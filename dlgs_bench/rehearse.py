"""Replay a job's profile on this machine over slowed links: workers wait instead of computing, exchanges are real.

Example: dlgs-bench rehearse profile.json --workers 4 --link-mbit 400
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dlgs_bench import advise
from dlgs_bench.engines import ENGINES
from dlgs_bench.errors import OneLineParser, short_repr
from dlgs_bench.launch import processes
from dlgs_bench.spec import UNCOMPRESSED, Cluster, LaunchSettings, RunSpec
from dlgs_bench.stats import repeatable
from dlgs_bench.testbed import testbed
from dlgs_bench.timemodel import job_advice
from dlgs_bench.timemodel.job_advice import Job, JobModel
from dlgs_bench.timemodel.links import Network
from dlgs_bench.timemodel.slowdown import LEAST_MBIT, MOST_MBIT

PROGRAM = "dlgs-bench rehearse"
ENGINE = next(name for name, engine in ENGINES.items() if engine.package == "torch")
MOST_WORKERS = 32  # each is a process of this machine that loads torch
BLOCKS, MOST_BLOCKS = 5, 1000
MOST_SLOWDOWN = 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Print measured next to predicted iterations; the exit status: 0, or 2 for what ends in one line."""
    given = _parser().parse_args(arguments)
    try:
        models = partial(job_advice.script_models, rehearsed=True)
        _, job_models, there = advise.asked(given, models, given.slowdown)
        _check(job_models[0].job, there, given.profile)
        rows = _measured(job_models, there, given.blocks)
    except ValueError as error:
        print(f"{PROGRAM}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(_report(job_models, there, rows, given))
    return 0


def _parser() -> argparse.ArgumentParser:
    summary, example = (__doc__ or "").split("\n\n")
    parser = OneLineParser(prog=PROGRAM, description=summary, epilog=example, allow_abbrev=False)
    advise.add_questions(parser)
    slowdown = "each worker waits K times the recorded computing time (default: 1); links that are K times slower keep "
    slowdown += "the ratio of computation to communication"
    parser.add_argument("--slowdown", type=_slowdown, default=1.0, metavar="K", help=slowdown)
    blocks = f"number of blocks; each method is timed once per block (default: {BLOCKS})"
    parser.add_argument("--blocks", type=_blocks, default=BLOCKS, metavar="N", help=blocks)
    return parser


def _slowdown(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 / MOST_SLOWDOWN <= value <= MOST_SLOWDOWN:
        raise argparse.ArgumentTypeError(f"{short_repr(text)} is not a factor from 1e-6 to 1e6")
    return value


def _blocks(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text[:9]) <= MOST_BLOCKS):
        raise argparse.ArgumentTypeError(f"{short_repr(text)} is not a whole number from 1 to {MOST_BLOCKS}")
    return int(text)


def _check(job: Job, there: Network, profile: str) -> None:
    """ValueError in one line if the job cannot be rehearsed on this machine."""
    if job.words != 1:
        raise ValueError(f"{profile}: parameters: not all are float32; record a job whose parameters are float32")
    if there.workers > MOST_WORKERS:
        raise ValueError(f"--workers: {there.workers} is more than one machine rehearses; give at most {MOST_WORKERS}")
    if not LEAST_MBIT <= there.rate_mbit <= MOST_MBIT:
        raise ValueError(
            f"--link-mbit: {there.rate_mbit:g} is not a rate that the testbed can shape, {LEAST_MBIT} to {MOST_MBIT}; "
            "give a rate in this range, and a --slowdown by the same factor"
        )
    if why := testbed.why_unavailable(job.with_latency(there).latency_ms, there.rate_mbit):
        raise ValueError(f"no testbed here: {why}; dlgs-bench check-testbed shows what is missing")


def _waited_forward_s(job: job_advice.Job) -> float:
    """Seconds of forward without the broadcast of buffers, which a rehearsal makes."""
    return max(0.0, job.forward_s - job_advice.recorded_broadcast_s(job))


def request(job_models: Sequence[JobModel], there: Network, blocks: int) -> dict:
    """What ``dlgs_bench.training.rehearsal`` is to do: one entry of ``methods`` per row of the advice."""
    job = job_models[0].job
    return {
        "engine": ENGINE,
        "buffer_entries": int(job.buffer_words),
        "forward_s": _waited_forward_s(job),
        "rest_s": job.rest_s + job.unexplained_s,
        "methods": [
            {"row": model.name, "name": UNCOMPRESSED if model.name in job_advice.DENSE_NAMES else model.name,
             "options": model.options, "plan": model.plan(there), "hooked": model.hooked,
             "shapes": model.job.shapes, "backward_s": model.job.backward_s}
            for model in job_models
        ],
        "blocks": blocks,
    }  # fmt: skip


def _measured(job_models: Sequence[JobModel], there: Network, blocks: int) -> list[dict]:
    """The rows of ``dlgs_bench.training.rehearsal``, from workers on hosts of a testbed."""
    rates_mbit = (there.rate_mbit,) * there.workers
    latency_ms = job_models[0].job.with_latency(there).latency_ms  # predictions contain the recorded latency, too
    cluster = Cluster(ENGINE, there.workers, network="testbed", rates_mbit=rates_mbit, latency_ms=latency_ms)
    with tempfile.TemporaryDirectory() as folder:
        asked, result, log = (Path(folder, name) for name in ("request.json", "result.json", "log"))
        asked.write_text(json.dumps(request(job_models, there, blocks)), encoding="utf-8")
        program = [sys.executable, "-m", "dlgs_bench.training.rehearsal", str(asked), str(result)]
        process = processes.start(RunSpec("exchanges", cluster=cluster), LaunchSettings(), program, log, [])
        try:
            process.wait()
        finally:
            processes.stop(process)
        if process.returncode:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ValueError(" ".join(["the workers failed:", *last]))
        return json.loads(result.read_text(encoding="utf-8"))


def _report(job_models: Sequence[JobModel], there: Network, rows: Sequence[dict], given: argparse.Namespace) -> str:
    cells = [["Method", "Predicted (ms)", "Measured (ms)", "Measured / predicted", "Sent (MB)"]]
    for model in sorted(job_models, key=lambda model: model.iteration_s(there)):
        own = [row for row in rows if row["row"] == model.name]
        measured, predicted_s = repeatable([row["seconds"] for row in own]), model.iteration_s(there)
        spread = f" [{advise.ms(measured.low)}, {advise.ms(measured.high)}]" if measured.enough else ""
        sent = f"{own[-1]['sent_bytes'] / 1e6:.3g}"
        cells.append(
            [model.label, advise.ms(predicted_s), advise.ms(measured.value) + spread,
             f"{measured.value / predicted_s:.2f}", sent]
        )  # fmt: skip
    job = job_models[0].job
    waits_s = job.alone_s - job.forward_s + _waited_forward_s(job)
    waits = advise.ms(waits_s)
    parts = "recorded computing"
    if job.unexplained_s:
        parts = f"{advise.ms(waits_s - job.unexplained_s)} ms of recorded computing, and "
        parts += f"{advise.ms(job.unexplained_s)} ms that the time model does not explain"
    slower = "" if given.slowdown == 1 else f", with the slowdown of {given.slowdown:g}"
    latency_ms = job.with_latency(there).latency_ms
    latency = f" and {latency_ms:g} ms of latency" if latency_ms else ""
    return (
        f"{advise.table(cells)}\n\nRehearsed by {there.workers} workers of this machine, over links of "
        f"{advise.mbit(there.rate_mbit)}{latency}. In each iteration a worker waits for {waits} ms: {parts}{slower}. "
        "Selection and exchange are real, and all workers share the cores of this machine for them. The prediction "
        f"takes the cost of selection from the profile. n = {given.blocks} blocks, in which the methods take turns; "
        "brackets: the 95 % interval of a repeat."
    )


if __name__ == "__main__":
    sys.exit(main())
