"""Timing runs: variants of one training in turns, in the same processes."""

from collections import Counter
from collections.abc import Callable

from harness.comm import Communicator
from harness.exchange.driver import Exchange
from harness.exchange.method import Method
from harness.training.server import Server
from harness.spec import RunSpec
from harness.training.clock import Clock
from harness.training.train import Trainer, epochs_of, group_rows, join, make_method, sent_row


def time_iterations(spec: RunSpec, comm: Communicator, data, device, report: Callable) -> dict[str, list[dict]]:
    """A timing run: ``iterations`` of the method and of uncompressed, in turns, in one process.

    ``trace``: rank 0's last iteration. ``groups``: which layers each variant exchanged together. ``sent``:
    entries that the method sent of each bucket.
    """
    trainer = join(spec, comm, data, device)
    variants = {"none": trainer.prepare(make_method("none", None, {}))}
    if spec.method != "none":
        variants[spec.method] = trainer.prepare(make_method(spec.method, spec.ratio, spec.options))
    iterations, sent = in_turns(trainer, variants, report)
    groups = [row for variant, exchange in variants.items() for row in group_rows(variant, exchange)]
    trace = trace_of(trainer.clock, variants[spec.method])
    return {"iterations": iterations, "groups": groups, "sent": sent[spec.method], "trace": trace}


def time_planners(spec: RunSpec, comm: Communicator, data, device, report: Callable) -> dict[str, list[dict]]:
    """One method under each of ``spec.plans`` and uncompressed, in turns: ``iterations`` and ``groups``.

    Planners that found the same groups are one variant, under the name of the first.
    """
    trainer = join(spec, comm, data, device)
    variants = {"none": trainer.prepare(make_method("none", None, {}))}
    distinct = {}
    for name, plan in spec.plans.items():
        if distinct.setdefault(plan, name) == name:
            variants[name] = trainer.prepare(make_method(spec.method, spec.ratio, spec.options), list(plan))
    iterations, _ = in_turns(trainer, variants, report)
    named = {"none": "none"} | {name: distinct[plan] for name, plan in spec.plans.items()}
    groups = [row | {"variant": v, "timed_as": t} for v, t in named.items() for row in group_rows(v, variants[t])]
    return {"iterations": iterations, "groups": groups}


def in_turns(trainer: Trainer | Server, variants: dict[str, Exchange], report: Callable) -> tuple[list, dict]:
    """The timed iterations of all variants, block by block, so that a drifting machine moves all; and for each
    variant what it sent in them.

    In a block each variant makes the first ``repeats`` steps of each phase of its cycle. Block 0
    warms up, one step of each phase, and is not kept. Methods start from their steady state
    (``Method.settle``); the density of every iteration is recorded, so that this can be seen.
    """
    spec, stream = trainer.spec, epochs_of(trainer.spec, trainer.comm, trainer.data)
    trainer.optimizer.lr = 1e-4  # the weights hardly move: the gradient stays what it is
    iterations, sent = [], {variant: [] for variant in variants}
    for block in range(spec.blocks + 1):
        for variant, exchange in variants.items():
            if block == 0:
                trainer.step(exchange, 1, stream)  # gradients exist, kernels are chosen
                trainer.local_gradient(stream)
                exchange.settle()
            for step in timed_steps(exchange.method, spec.repeats if block else 1):
                row, _ = trainer.step(exchange, block * exchange.method.cycle + step, stream)
                if block:
                    share = phase_share(exchange.method, row["phase"])
                    iterations.append({"block": block, "variant": variant, "share": share} | row)
                    sent[variant].append(sent_row(exchange, block=block, step=row["step"]))
        report(block, spec.blocks)
    return iterations, sent


def trace_of(clock: Clock, exchange: Exchange) -> list[dict]:
    """The last iteration as intervals in seconds from its start: what the main thread did (``compute``),
    and what each bucket's communication took (``communication``)."""
    rows = [{"row": "compute", "name": part, "begin_s": b, "end_s": e} for part, b, e in clock.intervals()]
    for bucket, begun, ended in exchange.communications:
        begin_s, end_s = begun - clock.started_at, ended - clock.started_at
        rows.append({"row": "communication", "name": f"bucket {bucket}", "begin_s": begin_s, "end_s": end_s})
    return rows


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
