"""Topologies: how a method's requests are answered on a communicator.

``allgather``: dense sums by all-reduce, sparse sums by all-gather of (values, indices) in a format of ``harness.wire``.
Counts what this worker hands to the network: bytes (values, indices and counts) and gradient entries.
"""

from harness.comm import Communicator, Pending
from harness.method import Gather, Request, Sum
from harness.wire import FORMATS

COUNT_BYTES = 8  # an int64 length travels with every variable-length tensor


class AllGather:
    """Collectives among equals. ``sent_bytes`` and ``sent_entries``: since the last ``reset``."""

    def __init__(self, comm: Communicator, wire: str = "indices"):
        self._comm, self._format = comm, FORMATS[wire]
        self.reset()

    def reset(self) -> None:
        self.sent_bytes = self.sent_entries = 0

    def start(self, request: Request) -> Pending:
        match request:
            case Sum(values, None):
                self.sent_bytes += values.nbytes
                self.sent_entries += values.numel()
                return self._comm.start_allreduce(values)
            case Sum(values, indices):
                message = self._format.pack(values, indices, request.out.numel())
                self.sent_entries += values.numel()
            case Gather(tensor):
                message = tensor
                self.sent_entries += tensor.numel()
        self.sent_bytes += message.nbytes + COUNT_BYTES
        return self._comm.start_allgather(message)

    def finish(self, request: Request, pending: Pending):
        """The answer; call when ``pending`` is done, or to wait for it."""
        answer = pending.wait()
        if isinstance(request, Sum) and request.indices is not None:
            out = request.out.zero_()
            for message in answer:  # in rank order: the same bits everywhere
                self._format.add(out, message)
            return out
        return answer


TOPOLOGIES = {"allgather": AllGather}
