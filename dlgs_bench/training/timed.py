"""Timing runs: several variants take turns in the same processes."""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.data import DataSet
from dlgs_bench.exchange import Method
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.stats import amortised, repeatable
from dlgs_bench.testbed import link_rates
from dlgs_bench.testbed.namespaces import start_time
from dlgs_bench.training.optimizer import TIMED_LR
from dlgs_bench.training.rows import group_rows, joined, over_workers, sent_row, trace_rows
from dlgs_bench.training.session import Session, decide, make_method

SPEED_SAMPLE_S = 2.0  # seconds of gradients by which the machine's speed is measured
MIN_SPEED_SAMPLES = 3  # gradients; between two blocks, as many are timed


def timing(
    spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """The tables of a timing run: ``iterations`` of uncompressed and of all schemes of the run, timed in turns.

    ``groups``: the layers of each bucket of a scheme. ``sent``: the entries sent of each bucket. ``trace``: the last
    iteration of each scheme on rank 0, or one more iteration if the engine must be polled. Column ``variant``: the
    scheme's label.
    """
    session = Session(spec, comm, data, device)
    for label, member in spec.members.items():
        scheme = member.scheme
        session.prepare(label, make_method(scheme.method, scheme.options), scheme=scheme)
    uncompressed = [label for label, member in spec.members.items() if member.variant == "none"]
    iterations, sent, traces = in_turns(session, settings, report, uncompressed)
    groups = []
    for label, exchange in session.exchanges.items():
        groups += group_rows(label, exchange)
        if comm.polled:  # polling would slow a timed iteration down
            with comm.record_completion_times():
                session.step(exchange, 2)  # for DLGS, a step that reuses its thresholds
            traces[label] = trace_rows(label, session.clock, exchange)
    trace = [row for rows in traces.values() for row in rows]
    return {"iterations": iterations, "groups": groups, "sent": sent, "trace": trace}


def planners(
    spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device, report: Callable, settings: LaunchSettings
) -> dict:
    """The tables ``iterations`` and ``groups`` of one method under each plan and of all bucketings of uncompressed.

    They are timed in turns. Planners that return the same groups are one variant, named after the first planner.
    """
    session = Session(spec, comm, data, device)
    dense = {label: member.scheme for label, member in spec.members.items() if member.variant == "none"}
    for label, scheme in dense.items():
        session.prepare(label, make_method("none", {}), scheme=scheme)
    first_planner = {}
    for name, plan in spec.scheme.plans.items():
        if plan not in first_planner:
            first_planner[plan] = name
            session.prepare(name, make_method(spec.scheme.method, spec.scheme.options), list(plan))
    iterations, _, _ = in_turns(session, settings, report, list(dense))
    timed_as = {label: label for label in dense}
    timed_as |= {name: first_planner[plan] for name, plan in spec.scheme.plans.items()}
    groups = [
        row | {"variant": name, "timed_as": timed_name}
        for name, timed_name in timed_as.items()
        for row in group_rows(name, session.exchanges[timed_name])
    ]
    return {"iterations": iterations, "groups": groups}


def in_turns(
    session: Session, settings: LaunchSettings, report: Callable, uncompressed: Sequence[str] = ("none",)
) -> tuple[list, list, dict[str, list]]:
    """The timed iterations of all schemes, the entries that each scheme sent in them, and a trace of its last one.

    Schemes take turns in each block, so that a drift of the machine moves all of them. In a block, each scheme makes
    the first ``repeats`` steps of each phase of its cycle. Before the first block, each scheme exchanges one gradient
    in each phase; this allocates its buffers, and is not timed. Blocks follow until the relative interval of every
    speed-up is at most ``width``, or another block would exceed the launch's share of the budget.

    Methods start in their stationary state (``Exchange.warm_start``); the density of each iteration is recorded to
    check this. ``slowdown``: of ``ProportionalLinks`` before the row's block. ``uncompressed``: the labels of its
    bucketings.
    """
    measurement = session.spec.measurement
    session.optimizer.lr = TIMED_LR
    iterations, sent, traces = [], [], {}
    session.local_gradient()  # allocates the gradients, and lets libraries choose their kernels
    links = ProportionalLinks(session)
    links.follow(SPEED_SAMPLE_S)
    for exchange in session.exchanges.values():
        exchange.warm_start()
    warm_up = [(one, step) for one in session.exchanges.values() for step in timed_steps(one.method, 1)]
    steps = {label: timed_steps(one.method, measurement.repeats) for label, one in session.exchanges.items()}
    per_block, expected = sum(map(len, steps.values())), measurement.blocks
    gradient = session.flat.gradients.clone()
    for done, (exchange, step) in enumerate(warm_up, start=1):
        session.step(exchange, step, gradient=gradient)
        report(done, len(warm_up) + expected * per_block)
    block, began, enough = 0, time.perf_counter(), False
    while not enough:
        block += 1
        for label, exchange in session.exchanges.items():
            before = block * whole_cycles(exchange.method, steps[label])
            for step in steps[label]:
                row = session.step(exchange, before + step)
                share = phase_share(exchange.method, row["phase"])
                iterations.append({"block": block, "variant": label, "share": share, "slowdown": links.slowdown} | row)
                sent.append(sent_row(exchange, variant=label, block=block, step=row["step"]))
                report(len(warm_up) + len(iterations), len(warm_up) + expected * per_block)
            traces[label] = trace_rows(label, session.clock, exchange)
        remaining = remaining_blocks(settings, time.perf_counter() - began, block)
        expected = max(measurement.blocks, block + max(1, remaining))
        enough = block >= measurement.blocks and decide(
            session.comm, not remaining or widest(iterations, uncompressed) <= measurement.width
        )
        if not enough:
            links.follow()
    return over_workers(iterations, session.comm, session.spec.cluster.workers), sent, traces


def remaining_blocks(settings: LaunchSettings, spent_s: float, blocks: int) -> int:
    """The number of blocks that still fit into this launch's share of the budget, if ``blocks`` took ``spent_s``."""
    if settings.launch_budget_s is None:
        return 0
    return max(0, int((settings.launch_budget_s - since_start_s()) / (spent_s / blocks)))


def since_start_s() -> float:
    """Seconds since the start of this process, by a monotonic clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start_time(os.getpid())) / os.sysconf("SC_CLK_TCK")


class ProportionalLinks:
    """Keeps the links in proportion to the machine's current speed.

    If a gradient takes k times as long as in the calibration, the mean over the workers, the links become k times
    slower too, and ``slowdown`` is k. It is 1 if the rates are fixed. Shared machines drift by 10 to 20 % within
    minutes, which would change the ratio of computation to communication. Three gradients of a small net in a row took
    0.77 to 1.43 times the calibrated time. So k is the median of the last gradients that took ``SPEED_SAMPLE_S``
    together.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.slowdown = session, 1.0
        self._recent_s: list[float] = []  # of this worker's last gradients, about SPEED_SAMPLE_S together

    def follow(self, least_s: float = 0.0) -> None:
        """Time gradients for ``least_s``, at least ``MIN_SPEED_SAMPLES``, and set the links. All processes call it."""
        session = self._session
        calibrated_s = session.spec.cluster.calibrated_s
        if not calibrated_s:
            return
        own: list[float] = []
        began = time.perf_counter()
        # As in the calibration, all workers start each gradient at the same time.
        while not decide(session.comm, len(own) >= MIN_SPEED_SAMPLES and time.perf_counter() - began >= least_s):
            session.local_gradient()
            parts = session.clock.stop()
            own.append(parts["forward_s"] + parts["backward_s"])
        # One worker is not enough: where workers share cores, it may have a core of its own.
        self._recent_s += own
        while len(self._recent_s) > len(own) and sum(self._recent_s[1:]) >= SPEED_SAMPLE_S:
            del self._recent_s[0]
        row = {"computing_s": statistics.median(self._recent_s)}
        (mean,) = joined([row], {"computing_s": torch.mean}, session.comm, session.spec.cluster.workers)
        slowdown = mean["computing_s"] / calibrated_s
        if session.comm.rank == 0:
            link_rates.scale(self.slowdown / slowdown)
        session.comm.barrier()
        self.slowdown = slowdown


def widest(iterations: list[dict], uncompressed: Sequence[str] = ("none",)) -> float:
    """The widest relative interval of a speed-up against the fastest uncompressed in the same blocks.

    If only uncompressed is timed, the relative interval of its time. ``uncompressed``: the labels of its bucketings.
    """
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
    """The share of a cycle's steps that have this phase."""
    return sum(method.phase(step) == phase for step in range(1, method.cycle + 1)) / method.cycle


def over_cycle(method: Method, steps: list[int], seconds: list[float]) -> float:
    """The seconds of an iteration, amortised over the method's cycle, from the seconds of each of the timed steps."""
    phases = [method.phase(step) for step in steps]
    return amortised(zip(seconds, phases, [phase_share(method, phase) for phase in phases], strict=True))


def timed_steps(method: Method, repeats: int) -> list[int]:
    """The steps to time: the first ``repeats`` of each phase in one cycle, in order."""
    if method.cycle == 1:
        return list(range(1, repeats + 1))
    seen: Counter[str] = Counter()
    steps = []
    for step in range(1, method.cycle + 1):
        phase = method.phase(step)
        if seen[phase] < repeats:
            steps.append(step)
        seen[phase] += 1
    return steps


def whole_cycles(method: Method, steps: Sequence[int]) -> int:
    """The number of steps in the cycles, from step 1 on, that contain ``steps``."""
    return -(-max(steps) // method.cycle) * method.cycle
