"""Timing runs: variants of one training in turns, in the same processes."""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.data import DataSet
from dlgs_bench.exchange import Method
from dlgs_bench.launch import links
from dlgs_bench.launch.namespaces import born
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.stats import amortised, repeatable
from dlgs_bench.training.rows import group_rows, over_workers, sent_row, trace_rows
from dlgs_bench.training.session import Session, make_method

PROBE_S = 1.0  # at least one gradient, and more for so long, say how fast this machine computes when a run begins


def timing(
    spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """A timing run: ``iterations`` of uncompressed and of every scheme of the run, in turns, in one process.

    ``groups``: which layers each scheme exchanges together; ``sent``: the entries that it sent of each bucket;
    ``trace``: one iteration more of each, on rank 0. Column ``variant``: the scheme's label.
    """
    session = Session(spec, comm, data, device)
    for label, member in spec.members.items():
        scheme = member.scheme
        session.prepare(label, make_method(scheme.method, scheme.options), scheme=scheme)
    uncompressed = [label for label, member in spec.members.items() if member.variant == "none"]
    iterations, sent = in_turns(session, settings, report, uncompressed)
    groups, trace = [], []
    for label, exchange in session.exchanges.items():
        groups += group_rows(label, exchange)
        with comm.record_completion_times():
            session.step(exchange, 2)  # of DLGS: a reuse step
        trace += trace_rows(label, session.clock, exchange)
    return {"iterations": iterations, "groups": groups, "sent": sent, "trace": trace}


def planners(
    spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """One method under each of the plans and every bucketing of uncompressed, in turns: ``iterations`` and ``groups``.

    Planners that found the same groups are one variant, under the name of the first.
    """
    session = Session(spec, comm, data, device)
    dense = {label: member.scheme for label, member in spec.members.items() if member.variant == "none"}
    for label, scheme in dense.items():
        session.prepare(label, make_method("none", {}), scheme=scheme)
    distinct = {}
    for name, plan in spec.scheme.plans.items():
        if distinct.setdefault(plan, name) == name:
            session.prepare(name, make_method(spec.scheme.method, spec.scheme.options), list(plan))
    iterations, _ = in_turns(session, settings, report, list(dense))
    named = {label: label for label in dense} | {name: distinct[plan] for name, plan in spec.scheme.plans.items()}
    groups = [
        row | {"variant": name, "timed_as": timed_as}
        for name, timed_as in named.items()
        for row in group_rows(name, session.exchanges[timed_as])
    ]
    return {"iterations": iterations, "groups": groups}


def in_turns(
    session: Session, settings: LaunchSettings, report: Callable, uncompressed: Sequence[str] = ("none",)
) -> tuple[list, list]:
    """The timed iterations of all schemes, block by block, so that a drifting machine moves all; and what each scheme
    sent in them.

    In a block each scheme makes the first ``repeats`` steps of each phase of its cycle. Block 0 warms up, one step of
    each phase, and is not kept. Blocks follow until every speed-up is known to ``width`` or another block would exceed
    the launch's share of the budget. Methods start from their steady state (``Method.settle``); the density of every
    iteration is recorded, so that this can be seen. ``slowdown``: how many times as slow as in its calibration the
    machine and the links were. ``uncompressed``: the labels of its bucketings.
    """
    measurement = session.spec.measurement
    session.optimizer.lr = 1e-4  # the weights hardly move: the gradient stays what it is
    iterations, sent = [], []
    session.local_gradient()  # gradients exist, kernels are chosen
    slower = keep_proportion(session)
    for exchange in session.exchanges.values():
        exchange.warm_start()
    block, begun, enough = 0, 0.0, False
    while not enough:
        for label, exchange in session.exchanges.items():
            for step in timed_steps(exchange.method, measurement.repeats if block else 1):
                row = session.step(exchange, block * exchange.method.cycle + step)
                if block:
                    share = phase_share(exchange.method, row["phase"])
                    iterations.append({"block": block, "variant": label, "share": share, "slowdown": slower} | row)
                    sent.append(sent_row(exchange, variant=label, block=block, step=row["step"]))
        if not block:
            begun = time.perf_counter()
        more = left(settings, time.perf_counter() - begun, block)
        report(block + 1, max(measurement.blocks, block + more) + 1)
        enough = block >= measurement.blocks and session.decide(
            not more or widest(iterations, uncompressed) <= measurement.width
        )
        block += 1
    return over_workers(iterations, session.comm, session.spec.cluster.workers), sent


def left(settings: LaunchSettings, spent_s: float, blocks: int) -> int:
    """How many blocks more fit into this launch's share of the budget, if ``blocks`` took ``spent_s``."""
    if not blocks:
        return 0
    return max(0, int((settings.share_s - since_start_s()) / (spent_s / blocks)))


def since_start_s() -> float:
    """Seconds since this process was started, by a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(born(os.getpid())) / os.sysconf("SC_CLK_TCK")


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


def widest(iterations: list[dict], uncompressed: Sequence[str] = ("none",)) -> float:
    """The widest interval of a scheme's speed-up against the fastest uncompressed in the same blocks, divided by the
    speed-up; if only uncompressed is timed, the interval of its time. ``uncompressed``: labels of its bucketings."""
    blocks: dict[tuple[str, int], list] = {}
    for row in iterations:
        blocks.setdefault((row["variant"], row["block"]), []).append((row["iteration_s"], row["phase"], row["share"]))
    seconds: dict[str, list[float]] = {}
    for (variant, _), rows in blocks.items():
        seconds.setdefault(variant, []).append(amortised(rows))
    dense = min((seconds.pop(label) for label in uncompressed), key=statistics.median)
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
