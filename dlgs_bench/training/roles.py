"""Roles: the work of a process at each point of the schedule that all processes of a run follow.

A worker trains. A parameter server does not train: it answers the workers' pushes. Every role makes the same
collective calls at the same points, so no role depends on the work of another role.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from dlgs_bench.buckets import Plan
from dlgs_bench.exchange import Bucket, LocalSteps, Method
from dlgs_bench.exchange.driver import Exchange, LocalExchange, ServerExchange, WorkerExchange
from dlgs_bench.exchange.transport import ParameterServerTransport, Transport
from dlgs_bench.training.build import evaluating
from dlgs_bench.training.optimizer import SGD

if TYPE_CHECKING:
    from dlgs_bench.training.session import Session


@dataclass(frozen=True)
class Outcome:
    """The result of a batch: outputs with their classes in dimension 1, targets, and the mean loss."""

    outputs: Tensor
    targets: Tensor
    loss: Tensor

    def sums(self) -> Tensor:
        """[loss sum, correct, predictions] of the batch, float64."""
        return _sums(self.outputs, self.targets, self.loss * self.targets.numel())


class Role(ABC):
    """The work of one process of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @abstractmethod
    def exchange(self, method: Method, groups: Plan, buckets: list[Bucket], transport: Transport) -> Exchange:
        """The exchange of a method, as this role takes part in it."""

    @abstractmethod
    def compute(self, begun: Callable[[], None]) -> Outcome | None:
        """Run forward and backward of the next batch, and call ``begun`` between them; None for a role without data."""

    @abstractmethod
    def update(self) -> None:
        """Update the parameters with the aggregate, which is in the buckets."""

    @abstractmethod
    def part_of_mean(self, tensor: Tensor) -> Tensor:
        """The summand of this process in the mean of ``tensor`` over the workers."""

    @abstractmethod
    def test_sums(self, limit: int) -> Tensor:
        """[loss sum, correct, predictions] of this process's share of the first ``limit`` test samples."""


class Worker(Role):
    def exchange(self, method: Method, groups: Plan, buckets: list[Bucket], transport: Transport) -> Exchange:
        clock = self.session.clock
        if isinstance(method, LocalSteps):
            return LocalExchange(method, groups, buckets, transport, clock, self.session.flat.parameters)
        return WorkerExchange(method, groups, buckets, transport, clock)

    def compute(self, begun: Callable[[], None]) -> Outcome:
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

    def update(self) -> None:
        flat = self.session.flat
        if self.session.spec.topology.owner == "server":  # the server's new weights have replaced the gradients
            flat.parameters.copy_(flat.gradients)
        else:
            self.session.optimizer.step(flat.gradients)

    def part_of_mean(self, tensor: Tensor) -> Tensor:
        return tensor / self.session.spec.cluster.workers

    def test_sums(self, limit: int) -> Tensor:
        session = self.session
        sums = torch.zeros_like(session.sums)
        with evaluating(session.flat.model), torch.no_grad():
            for inputs, targets in session.data.test(250, session.shard, limit):
                outputs = session.outputs(inputs)
                sums += _sums(outputs, targets, session.model.loss(outputs, targets, reduction="sum"))
        return sums


class Server(Role):
    """A parameter server. It has the same model and optimizer as the workers, and answers their pushes with them."""

    def exchange(self, method: Method, groups: Plan, buckets: list[Bucket], transport: Transport) -> Exchange:
        session = self.session
        server_transport, optimizer = cast(ParameterServerTransport, transport), cast(SGD, session.optimizer)
        return ServerExchange(method, groups, buckets, server_transport, session.flat.gradients, optimizer)

    def compute(self, begun: Callable[[], None]) -> None:
        """Do nothing: a server has no data."""

    def update(self) -> None:
        """Do nothing: the server updates each bucket when it answers the workers."""

    def part_of_mean(self, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    def test_sums(self, limit: int) -> Tensor:
        return torch.zeros_like(self.session.sums)


def _sums(outputs: Tensor, targets: Tensor, loss_sum: Tensor) -> Tensor:
    correct = (outputs.argmax(1) == targets).sum()
    return torch.stack([loss_sum, correct, torch.full_like(correct, targets.numel())]).double()
