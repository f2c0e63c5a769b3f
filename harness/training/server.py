"""The parameter server: trains nothing, answers the workers' pushes bucket by bucket.

It goes through the same steps as a worker, with stand-ins: ``Server`` in the trainer's place and ``Serving``
in the exchange's, so that there is one schedule for all.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from harness.exchange.driver import Exchange
from harness.exchange.method import Method
from harness.training.optimizer import SGD
from harness.timemodel.timeline import Plan


class Serving:
    """In an exchange's place: collects the workers' pushes of each bucket, in their order, and answers.

    ``gradients``: shape (d,), where the sums go, which the exchange's buckets cut; with ``weights`` pulls
    ``optimizer`` makes new weights of them, bucket by bucket.
    """

    def __init__(self, exchange: Exchange, gradients: Tensor, optimizer: SGD):
        self.method, self.groups, self.buckets = exchange.method, exchange.groups, exchange.buckets
        self.topology, self.communications, self.sent_entries = exchange.topology, [], []
        self._gradients, self._optimizer = gradients, optimizer
        self._ranges = list(pairwise(accumulate((b.size for b in self.buckets), initial=0)))

    def begin(self, step: int) -> None:
        self.topology.reset()

    def ready(self, layer: int) -> None:
        """No layers here."""

    def settle(self) -> None:
        """The method's state is with the workers."""

    def finish(self) -> None:
        """One step: for every bucket, collect the pushes and answer them."""
        sparse, pull = self.method.one_sum == "sparse", None
        for start, stop in self._ranges:
            push = self.topology.collect(sparse)
            if pull is not None:
                pull.wait()  # ended before this push: no time lost, and its weights may be touched again
            pull = self.topology.answer(self._answer(start, stop, push.wait(), sparse))
        pull.wait()

    def _answer(self, start: int, stop: int, messages: list[Tensor], sparse: bool) -> Tensor:
        total = self.topology.add_up(self._gradients[start:stop], messages[:-1])
        if self.topology.pull == "weights":
            self._optimizer.step(self._gradients, start, stop)
            return self._optimizer.parameters[start:stop]
        if not sparse:
            return total
        indices = total.nonzero().view(-1)
        return self.topology.pack(total[indices], indices, stop - start)


class Server:
    """In a trainer's place: the same model, optimizer and clock, put to serving."""

    def __init__(self, trainer):
        self._trainer = trainer
        self.spec, self.comm, self.data = trainer.spec, trainer.comm, trainer.data
        self.flat, self.optimizer, self.clock = trainer.flat, trainer.optimizer, trainer.clock

    def prepare(self, method: Method, groups: Plan | None = None) -> Serving:
        return Serving(self._trainer.prepare(method, groups), self.flat.gradients, self.optimizer)

    def step(self, serving: Serving, number: int, batches: Iterator) -> tuple[dict, Tensor]:
        """One iteration of the workers; the server adds nothing to their loss and accuracy."""
        self.clock.start()
        serving.begin(number)
        serving.finish()
        return {"step": number, "phase": serving.method.phase(number)} | self.clock.stop(), self._nothing()

    def local_gradient(self, batches: Iterator, listener=None) -> None:
        """No data here."""

    def evaluate(self, limit: int) -> dict[str, float]:
        """Takes part in the workers' sums with zeros."""
        comm, buffers = self.comm, self.flat.buffers()
        if buffers:
            comm.allreduce(torch.zeros(sum(b.numel() for b in buffers), device=comm.device))
        comm.allreduce(self._nothing())
        return {}

    def _nothing(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64, device=self.flat.parameters.device)
