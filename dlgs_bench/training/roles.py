"""Roles: what a process does at each point of the schedule that all processes of a run go through.

A worker trains. A parameter server trains nothing: it answers the workers' pushes. Every role makes the same
collective calls at the same points, so that no role has to know what another one does there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dlgs_bench.exchange import Bucket, LocalSteps, Method
from dlgs_bench.exchange.driver import Exchange, LocalExchange, ServerExchange, WorkerExchange
from dlgs_bench.exchange.transport import Transport
from dlgs_bench.training.build import evaluating

if TYPE_CHECKING:
    from dlgs_bench.training.session import Session


@dataclass(frozen=True)
class Outcome:
    """What a batch gave: outputs with their classes in dimension 1, targets, and the mean loss."""

    outputs: Tensor
    targets: Tensor
    loss: Tensor

    def sums(self) -> Tensor:
        """[loss sum, correct, predictions], float64."""
        return _sums(self.outputs, self.targets, self.loss * self.targets.numel())


class Role(ABC):
    def __init__(self, session: Session):
        self.session = session

    @abstractmethod
    def exchange(self, method: Method, groups, buckets: list[Bucket], transport: Transport) -> Exchange:
        """This role's part in the exchanges of a method."""

    @abstractmethod
    def compute(self, begun: Callable[[], None]) -> Outcome | None:
        """Forward and backward of the next batch, ``begun`` being called between them; None without data."""

    @abstractmethod
    def update(self) -> None:
        """Bring the parameters up to date: the aggregate lies in the buckets."""

    @abstractmethod
    def share(self, tensor: Tensor) -> Tensor:
        """This process's addend to the mean of ``tensor`` over the workers."""

    @abstractmethod
    def test_sums(self, limit: int) -> Tensor:
        """[loss sum, correct, predictions] of this process's share of the first ``limit`` test samples."""


class Worker(Role):
    def exchange(self, method, groups, buckets, transport):
        clock = self.session.clock
        if isinstance(method, LocalSteps):
            return LocalExchange(method, groups, buckets, transport, clock, self.session.flat.parameters)
        return WorkerExchange(method, groups, buckets, transport, clock)

    def compute(self, begun):
        session = self.session
        inputs, targets = session.next_batch()
        with session.clock("forward"):
            outputs = session.outputs(inputs)
            loss = session.model.loss(outputs, targets)
        begun()
        with session.clock("backward"):
            loss.backward()
        session.complete_gradient()
        return Outcome(outputs.detach(), targets, loss.detach())

    def update(self):
        flat = self.session.flat
        if self.session.spec.topology.owner == "server":  # its new weights lie where the gradients lay
            flat.parameters.copy_(flat.gradients)
        else:
            self.session.optimizer.step(flat.gradients)

    def share(self, tensor):
        return tensor / self.session.spec.cluster.workers

    def test_sums(self, limit):
        session = self.session
        sums = torch.zeros_like(session.sums)
        with evaluating(session.flat.model), torch.no_grad():
            for inputs, targets in session.data.test(250, session.shard, limit):
                outputs = session.outputs(inputs)
                sums += _sums(outputs, targets, session.model.loss(outputs, targets, reduction="sum"))
        return sums


class Server(Role):
    """It owns the same model and optimizer as the workers, and puts them to serving."""

    def exchange(self, method, groups, buckets, transport):
        session = self.session
        return ServerExchange(method, groups, buckets, transport, session.flat.gradients, session.optimizer)

    def compute(self, begun):
        """No data here."""

    def update(self):
        """Done bucket by bucket, while answering."""

    def share(self, tensor):
        return torch.zeros_like(tensor)

    def test_sums(self, limit):
        return torch.zeros_like(self.session.sums)


def _sums(outputs: Tensor, targets: Tensor, loss_sum: Tensor) -> Tensor:
    correct = (outputs.argmax(1) == targets).sum()
    return torch.stack([loss_sum, correct, torch.full_like(correct, targets.numel())]).double()
