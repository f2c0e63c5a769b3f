"""Topologies: how a method's requests are answered on a communicator.

``allgather``: dense sums by all-reduce, sparse sums by all-gather of (values, indices).
Counts what this worker hands to the network: bytes (values, indices and counts) and gradient entries.
"""

import torch
from torch import Tensor

from harness.comm import Communicator, Pending
from harness.method import Gather, Request, Sum

COUNT_BYTES = 8  # an int64 length travels with every variable-length tensor


class AllGather:
    """Collectives among equals. ``sent_bytes`` and ``sent_entries``: since the last ``reset``."""

    def __init__(self, comm: Communicator):
        self._comm = comm
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
                message = pack(values, indices)
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
                add_packed(out, message)
            return out
        return answer


TOPOLOGIES = {"allgather": AllGather}


def pack(values: Tensor, indices: Tensor) -> Tensor:
    """float32 values (k,) and indices (k,) as one int32 message (2k,): the values' bits, then indices.

    Nothing is copied where the indices follow the values in memory already.
    """
    bits, indices = values.view(torch.int32), indices.to(torch.int32)
    one_memory = bits.untyped_storage().data_ptr() == indices.untyped_storage().data_ptr()
    if one_memory and indices.storage_offset() == bits.storage_offset() + bits.numel():
        return bits.as_strided((2 * bits.numel(),), (1,))
    return torch.cat([bits, indices])


def add_packed(out: Tensor, message: Tensor) -> None:
    """Add a packed message to ``out``, shape (d,)."""
    values, indices = message.tensor_split(2)
    out.index_add_(0, indices, values.view(torch.float32))
