"""Timing runs: variants of one training in turns, in the same processes."""

import statistics
import time
from collections import Counter
from collections.abc import Callable

import torch

from harness.comm import Communicator
from harness.data import DataSet
from harness.exchange import Method
from harness.launch import links
from harness.spec import RunSpec
from harness.statistics import amortised, repeatable
from harness.training.rows import group_rows, over_workers, sent_row, trace_rows
from harness.training.session import Session, make_method

PROBE_S = 1.0  # at least one gradient, and more for so long, say how fast this machine computes when a run begins


def timing(spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable) -> dict:
    """A timing run: ``iterations`` of uncompressed, the method and those ``beside`` it, in turns, in one process.

    ``groups``: which layers each variant exchanged together. Of the method alone: ``trace``, one iteration more, on
    rank 0; ``sent``, entries that it sent of each bucket.
    """
    session, scheme = Session(spec, comm, data, device), spec.scheme
    for variant in dict.fromkeys(["none", spec.variant, *scheme.beside]):
        one = scheme.alone(variant)
        session.prepare(variant, make_method(one.method, one.options), scheme=one)
    iterations, sent = in_turns(session, report)
    groups = [row for variant, exchange in session.exchanges.items() for row in group_rows(variant, exchange)]
    exchange = session.exchanges[spec.variant]
    with comm.noting_ends():
        session.step(exchange, 2)  # of DLGS: a reuse step
    trace = trace_rows(session.clock, exchange)
    return {"iterations": iterations, "groups": groups, "sent": sent[spec.variant], "trace": trace}


def planners(spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable) -> dict:
    """One method under each of the plans and uncompressed, in turns: ``iterations`` and ``groups``.

    Planners that found the same groups are one variant, under the name of the first.
    """
    session = Session(spec, comm, data, device)
    session.prepare("none", make_method("none", {}))
    distinct = {}
    for name, plan in spec.scheme.plans.items():
        if distinct.setdefault(plan, name) == name:
            session.prepare(name, make_method(spec.scheme.method, spec.scheme.options), list(plan))
    iterations, _ = in_turns(session, report)
    named = {"none": "none"} | {name: distinct[plan] for name, plan in spec.scheme.plans.items()}
    groups = [
        row | {"variant": name, "timed_as": timed_as}
        for name, timed_as in named.items()
        for row in group_rows(name, session.exchanges[timed_as])
    ]
    return {"iterations": iterations, "groups": groups}


def in_turns(session: Session, report: Callable) -> tuple[list, dict]:
    """The timed iterations of all variants, block by block, so that a drifting machine moves all; and for each
    variant what it sent in them.

    In a block each variant makes the first ``repeats`` steps of each phase of its cycle. Block 0 warms up, one
    step of each phase, and is not kept. Blocks follow until the speed-up is known to ``width`` or the time is up.
    Methods start from their steady state (``Method.settle``); the density of every iteration is recorded, so that
    this can be seen. ``dilation``: how many times as slow as in its calibration the machine and the links were.
    """
    measurement = session.spec.measurement
    session.optimizer.lr = 1e-4  # the weights hardly move: the gradient stays what it is
    iterations, sent = [], {variant: [] for variant in session.exchanges}
    session.local_gradient()  # gradients exist, kernels are chosen
    slower = keep_proportion(session)
    for exchange in session.exchanges.values():
        exchange.settle()
    begun, block, enough = time.perf_counter(), 0, False
    while not enough:
        for variant, exchange in session.exchanges.items():
            for step in timed_steps(exchange.method, measurement.repeats if block else 1):
                row = session.step(exchange, block * exchange.method.cycle + step)
                if block:
                    share = phase_share(exchange.method, row["phase"])
                    iterations.append({"block": block, "variant": variant, "share": share, "dilation": slower} | row)
                    sent[variant].append(sent_row(exchange, block=block, step=row["step"]))
        spent_s = time.perf_counter() - begun
        report(block + 1, max(measurement.blocks, block, int(block * measurement.limit_s / spent_s)) + 1)
        enough = block >= measurement.blocks and _enough(session, iterations, spent_s)
        block += 1
    return over_workers(iterations, session.comm, session.spec.cluster.workers), sent


def keep_proportion(session: Session) -> float:
    """Make links in proportion as many times slower than asked for as this machine has become at computing since its
    calibration, and return how many: 1 where the rates are fixed.

    Machines shared with others drift by 10 to 20 % within minutes, and would take the proportion with them.
    """
    calibrated_s, seconds = session.spec.cluster.calibrated_s, []
    if not calibrated_s:
        return 1.0
    begun = time.perf_counter()
    while not session.decide(bool(seconds) and time.perf_counter() - begun >= PROBE_S):  # all start together
        session.local_gradient()
        parts = session.clock.stop()
        seconds.append(parts["forward_s"] + parts["backward_s"])
    slower = statistics.median(seconds) / calibrated_s
    if session.comm.rank == 0:
        links.scale(1 / slower)
    session.comm.barrier()
    return slower


def _enough(session: Session, iterations: list[dict], spent_s: float) -> bool:
    """Whether the time is up or the speed-ups are known well enough."""
    measurement = session.spec.measurement
    return session.decide(spent_s >= measurement.limit_s or widest(iterations) <= measurement.width)


def widest(iterations: list[dict]) -> float:
    """The widest interval of a variant's speed-up against uncompressed in the same blocks, as a part of it; where
    only uncompressed is timed, that of its time."""
    blocks: dict[tuple[str, int], list] = {}
    for row in iterations:
        blocks.setdefault((row["variant"], row["block"]), []).append((row["iteration_s"], row["phase"], row["share"]))
    seconds: dict[str, list[float]] = {}
    for (variant, _), rows in blocks.items():
        seconds.setdefault(variant, []).append(amortised(rows))
    dense = seconds.pop("none")
    if not seconds:
        return repeatable(dense).width
    return max(repeatable([d / o for d, o in zip(dense, own, strict=True)]).width for own in seconds.values())


def phase_share(method: Method, phase: str) -> float:
    """The part of a cycle's steps that are of this phase."""
    return sum(method.phase(step) == phase for step in range(1, method.cycle + 1)) / method.cycle


def timed_steps(method: Method, repeats: int) -> list[int]:
    """The steps to time: the first ``repeats`` of each phase in one cycle, in order."""
    if method.cycle == 1:
        return list(range(1, repeats + 1))
    seen = Counter()
    steps = []
    for step in range(1, method.cycle + 1):
        phase = method.phase(step)
        if seen[phase] < repeats:
            steps.append(step)
        seen[phase] += 1
    return steps
