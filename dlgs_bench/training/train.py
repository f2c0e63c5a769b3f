"""Accuracy runs: synchronous data-parallel training with a method between backward and the optimizer.

This is the training of the paper's Section 3.4. One step is ``Session.step``.
"""

from pathlib import Path

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.data import DataSet
from dlgs_bench.exchange.coalesced import CoalescedGathers
from dlgs_bench.exchange.driver import Exchange, LocalExchange
from dlgs_bench.launch.liveness import Progress
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.training.checkpoint import Checkpoints, identity
from dlgs_bench.training.error_probe import COLUMNS, ErrorProbe
from dlgs_bench.training.finite_check import FiniteCheck
from dlgs_bench.training.rows import group_rows, sent_row
from dlgs_bench.training.session import Session, decide, make_method


def accuracy(
    spec: RunSpec,
    comm: Communicator,
    data: DataSet,
    device: torch.device,
    report: Progress,
    settings: LaunchSettings,
) -> dict:
    """The tables of an accuracy run: ``points`` of the curves, ``iterations`` with their parts, ``groups``, ``sent``.

    ``metadata``: a checksum of the final weights, the cost of checkpoints, and the machines. A run that was stopped
    continues from its last checkpoint.

    Training accuracy and loss are means over the augmented batches since the previous point, computed in the forward
    passes of training. Test accuracy and loss are computed at the point. In the steps of the points, the aggregate is
    compared with the true mean of the gradients (``squared_error`` and ``squared_mean`` of the iteration).
    """
    session, exchange = begin(spec, comm, data, device)
    total_steps = session.spec.steps(session.data.train_size)
    checkpoints = Checkpoints(Path(settings.checkpoints), settings.checkpoint_every_s, identity(spec), report.say)
    checkpoints.resume(session)
    while session.done < total_steps:
        advance(session, exchange, total_steps)
        report(session.done, total_steps)
        checkpoints.save_if_due(session)
    metadata = {"weights": session.flat.checksum(), "checkpoints": checkpoints.cost, "machines": checkpoints.machines}
    return session.rows | {"groups": group_rows(spec.variant, exchange), "metadata": metadata}


def begin(spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device) -> tuple[Session, Exchange]:
    """The session of an accuracy run before its first step, and the exchange of its method."""
    session = Session(spec, comm, data, device)
    session.rows = {"points": [], "iterations": [], "sent": []}
    exchange = session.prepare(spec.variant, make_method(spec.scheme.method, spec.scheme.options))
    exchange.transport.gather = CoalescedGathers(comm).start  # no time is measured
    return session, exchange


def advance(session: Session, exchange: Exchange, total_steps: int) -> None:
    """Make one step of an accuracy run, and add a point to the curve if a point is due."""
    spec, step = session.spec, session.done + 1
    session.optimizer.lr = spec.training.learning_rate(session.done / session.epoch_steps)
    point_due = step in spec.points(total_steps)
    # The aggregate does not estimate the mean gradient if it holds momentum, a server's weights or a weight difference.
    comparable = not (exchange.method.owns_momentum or spec.topology.servers or isinstance(exchange, LocalExchange))
    error_probe = ErrorProbe(exchange, session.flat) if point_due and comparable else None
    finite_check = FiniteCheck(error_probe or exchange, session.flat, step, session.comm.rank)
    iteration = session.step(exchange, step, finite_check)
    finite_check.check(session.sums[0])
    errors = error_probe.errors(session.comm) if error_probe else dict.fromkeys(COLUMNS)
    session.rows["iterations"].append(iteration | errors)
    session.rows["sent"].append(sent_row(exchange, step=step))
    if _reaches_byte_budget(session, iteration) or point_due:
        limit = spec.measurement.final_test_samples if step == total_steps else spec.measurement.test_samples
        point = {"epoch": step / session.epoch_steps, "step": step, "sent_bytes": session.sent_bytes}
        point |= session.train_means() | session.evaluate(limit)
        session.rows["points"].append(point | {"elapsed_s": session.elapsed_s})
    session.done = step


def _reaches_byte_budget(session: Session, iteration: dict) -> bool:
    """Whether rank 0 reached ``byte_budget`` in this step, so that the curve gets one more point."""
    budget = session.spec.measurement.byte_budget
    return budget > 0 and decide(
        session.comm, session.sent_bytes - iteration["sent_bytes"] < budget <= session.sent_bytes
    )
