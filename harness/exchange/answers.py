"""Topologies: how a method's requests are answered on a communicator.

``allgather``: dense sums by all-reduce, sparse sums by all-gather of (values, indices).
``ps-weights``, ``ps-sparse``: a parameter server adds up what the workers push; they pull the weights that
its optimizer makes of the sum (the paper's words), or the sum, in the form in which it was pushed.
What is sparse travels in a format of ``harness.exchange.wire``.

Counted is what this worker hands to the engine, bytes (values, indices and counts) and gradient entries,
and the bytes that the engine hands it from others: the sum, or the others' messages. The network may carry
more: a ring moves 2 (N - 1) / N times the bytes of an all-reduce, each way.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from harness.comm import Communicator, Pending
from harness.exchange.method import Gather, Request, Sum
from harness.exchange.wire import FORMATS

COUNT_BYTES = 8  # an int64 length travels with every variable-length tensor


class Topology:
    """``sent_bytes``, ``received_bytes``, ``sent_entries``: of this worker, since the last ``reset``."""

    def __init__(self, comm: Communicator, wire: str = "indices"):
        self._comm, self._format = comm, FORMATS[wire]
        self.reset()

    def reset(self) -> None:
        self.sent_bytes = self.received_bytes = self.sent_entries = 0

    def pack(self, values: Tensor, indices: Tensor, size: int) -> Tensor:
        """The entries of a bucket of ``size`` as one int32 message."""
        return self._format.pack(values, indices, size)

    def add_up(self, out: Tensor, messages: list[Tensor]) -> Tensor:
        """Write the sum of messages, packed (int32) or dense (d,), to ``out``, shape (d,); return it.

        Added in the order given, rank order: the same bits everywhere.
        """
        out.zero_()
        for message in messages:
            if message.dtype == torch.int32:
                self._format.add(out, message)
            else:
                out += message
        return out


class AllGather(Topology):
    """Collectives among equals."""

    def start(self, request: Request) -> Pending:
        match request:
            case Sum(values, None):
                self.sent_bytes += values.nbytes
                self.sent_entries += values.numel()
                return self._comm.start_allreduce(values)
            case Sum(values, indices):
                message = self.pack(values, indices, request.out.numel())
                self.sent_entries += values.numel()
            case Gather(tensor):
                message = tensor
                self.sent_entries += tensor.numel()
        self.sent_bytes += message.nbytes + COUNT_BYTES
        return self._comm.start_allgather(message)

    def finish(self, request: Request, pending: Pending):
        """The answer; call when ``pending`` is done, or to wait for it."""
        answer = pending.wait()
        if isinstance(request, Sum) and request.indices is None:
            self.received_bytes += answer.nbytes
            return answer
        others = (message for rank, message in enumerate(answer) if rank != self._comm.rank)
        self.received_bytes += sum(message.nbytes + COUNT_BYTES for message in others)
        return self.add_up(request.out, answer) if isinstance(request, Sum) else answer


class ParameterServer(Topology):
    """A server, the last rank, between the workers: a push is an all-to-all in which only the server
    receives, a pull one in which only it sends.

    The server's link is the bottleneck: it takes in every worker's push, then gives out as many answers.
    """

    def __init__(self, comm: Communicator, wire: str = "indices", *, pull: Literal["weights", "sparse"]):
        super().__init__(comm, wire)
        self.pull = pull
        self._workers = comm.world_size - 1

    def start(self, request: Request) -> Pending:
        """A worker's push, and its pull at once behind it."""
        if not isinstance(request, Sum):
            raise TypeError("a parameter server answers sums only")
        sparse = request.indices is not None
        message = request.values
        if sparse:
            message = self.pack(request.values, request.indices, request.out.numel())
        self.sent_entries += request.values.numel()
        self.sent_bytes += message.nbytes + COUNT_BYTES
        push = self._comm.start_alltoall([message[:0]] * self._workers + [message])
        return PushPull(push, self._take(sparse and self.pull == "sparse"))

    def finish(self, request: Sum, pending: "PushPull") -> Tensor:
        """The answer, which for ``weights`` is no gradient: the bucket's new weights."""
        message = pending.wait()[self._workers]
        self.received_bytes += message.nbytes + COUNT_BYTES
        out = request.values if request.out is None else request.out
        return self.add_up(out, [message]) if message.dtype == torch.int32 else out.copy_(message)

    def collect(self, sparse: bool) -> Pending:
        """On the server: the next bucket's messages, the workers' in rank order, then its own, empty."""
        return self._take(sparse)

    def answer(self, message: Tensor) -> Pending:
        """On the server: give all workers the same message."""
        return self._comm.start_alltoall([message] * self._workers + [message[:0]])

    def _take(self, sparse: bool) -> Pending:
        """This rank's part in an all-to-all in which it sends nothing; packed messages are int32."""
        nothing = torch.empty(0, dtype=torch.int32 if sparse else torch.float32, device=self._comm.device)
        return self._comm.start_alltoall([nothing] * self._comm.world_size)


class PushPull:
    """Two communications under way, of which the second brings the answer."""

    def __init__(self, push: Pending, pull: Pending):
        self._push, self._pull = push, pull

    def done(self) -> bool:
        return self._push.done() and self._pull.done()

    def wait(self):
        self._push.wait()
        return self._pull.wait()


TOPOLOGIES = {
    "allgather": AllGather,
    "ps-weights": partial(ParameterServer, pull="weights"),
    "ps-sparse": partial(ParameterServer, pull="sparse"),
}
