"""Accuracy runs: synchronous data-parallel training with a method between backward and the optimizer.

The paper's Section 3.4; one step is ``Session.step``.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from dlgs_bench.comm import Communicator
from dlgs_bench.data import DataSet
from dlgs_bench.exchange.driver import Exchange, LocalExchange
from dlgs_bench.spec import LaunchSettings, RunSpec
from dlgs_bench.training.checkpoint import Checkpoints, identity
from dlgs_bench.training.error_probe import COLUMNS, ErrorProbe
from dlgs_bench.training.finite_check import FiniteCheck
from dlgs_bench.training.rows import group_rows, sent_row
from dlgs_bench.training.session import Session, make_method


def accuracy(
    spec: RunSpec,
    comm: Communicator,
    data: DataSet,
    device: torch.device,
    report: Callable,
    settings: LaunchSettings,
) -> dict:
    """An accuracy run, from its last checkpoint if it was stopped: ``points`` of the curves, ``iterations`` with their
    parts, ``groups`` and ``sent``; ``about`` the run: a checksum of the final weights, and what checkpoints cost.

    Training accuracy and loss are means over the augmented batches since the point before, as the
    model was when it saw them; test accuracy and loss are taken at the point. In the steps of the curve's points the
    aggregate is held against the true mean of the gradients (``squared_error``, ``squared_mean`` of the iteration).
    """
    session, exchange = begin(spec, comm, data, device)
    total = session.spec.steps(session.data.train_size)
    checkpoints = Checkpoints(Path(settings.checkpoints), settings.checkpoint_every_s, identity(spec), report.say)
    checkpoints.resume(session)
    while session.done < total:
        advance(session, exchange, total)
        report(session.done, total)
        checkpoints.look(session)
    about = {"weights": session.flat.checksum(), "checkpoints": checkpoints.cost}
    return session.rows | {"groups": group_rows(spec.variant, exchange), "about": about}


def begin(spec: RunSpec, comm: Communicator, data: DataSet, device: torch.device) -> tuple[Session, Exchange]:
    """The session of an accuracy run before its first step, and the exchange of its method."""
    session = Session(spec, comm, data, device)
    session.rows = {"points": [], "iterations": [], "sent": []}
    return session, session.prepare(spec.variant, make_method(spec.scheme.method, spec.scheme.options))


def advance(session: Session, exchange: Exchange, total: int) -> None:
    """One step of an accuracy run, and a point of the curve where one is due."""
    spec, number = session.spec, session.done + 1
    session.optimizer.lr = spec.training.learning_rate(session.done / session.epoch_steps)
    due = number in spec.points(total)
    # Aggregates that hold momentum, a server's weights, and how far weights went: none estimates the mean gradient.
    comparable = not (exchange.method.owns_momentum or spec.topology.servers or isinstance(exchange, LocalExchange))
    error_probe = ErrorProbe(exchange, session.flat) if due and comparable else None
    finite_check = FiniteCheck(error_probe or exchange, session.flat, number, session.comm.rank)
    row = session.step(exchange, number, finite_check)
    finite_check.check(session.sums[0])
    found = error_probe.found(session.comm) if error_probe else dict.fromkeys(COLUMNS)
    session.rows["iterations"].append(row | found)
    session.rows["sent"].append(sent_row(exchange, step=number))
    if _spends_budget(session, row) or due:
        limit = spec.measurement.final_test_samples if number == total else spec.measurement.test_samples
        point = {"epoch": number / session.epoch_steps, "step": number, "sent_bytes": session.sent_bytes}
        point |= session.train_means() | session.evaluate(limit)
        session.rows["points"].append(point | {"elapsed_s": session.elapsed_s})
    session.done = number


def _spends_budget(session: Session, row: dict) -> bool:
    """Whether rank 0 has in this step reached the bytes at which a point is wanted."""
    budget = session.spec.measurement.byte_budget
    return budget > 0 and session.decide(session.sent_bytes - row["sent_bytes"] < budget <= session.sent_bytes)
