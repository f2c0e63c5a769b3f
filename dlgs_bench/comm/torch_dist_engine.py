"""torch.distributed: Gloo on CPU, NCCL on GPU (Gloo if several processes share one GPU)."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending, Start, as_integers
from dlgs_bench.comm.collectives import HEADER_BYTES, PeerExchange
from dlgs_bench.comm.thread import CommThread
from dlgs_bench.engines import FIRST_BYTES, TIMEOUT_S


def connect(device: torch.device, shared: bool) -> "TorchDist":
    """Join the default process group. ``shared``: several processes use one GPU, which NCCL does not support."""
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    backend = "nccl" if device.type == "cuda" and not shared else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    return TorchDist(device)


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """The backend with which a group sends tensors of ``device``, such as "gloo"; by default, of the default group.

    A group may have a backend per type of device. torch.distributed.get_backend then returns all of them in one string.
    """
    return (group or dist.group.WORLD)._get_backend(device).name()


class PendingMessages:
    """Messages in flight. ``works``: their sends and receives; ``received``: a buffer per peer, of any dtype."""

    def __init__(
        self, works: Sequence[dist.Work], received: dict[int, Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._works, self._received = works, received
        self._dtype, self._device = dtype, device

    def wait(self) -> dict[int, Tensor]:
        """Wait for all messages; return those received, with the dtype and on the device of the round."""
        _wait(self._works)
        return {peer: t.view(self._dtype).to(self._device, non_blocking=True) for peer, t in self._received.items()}


class TorchDist(Communicator):
    """Collectives and messages of a process group.

    ``group``: the processes that take part; by default all. Nothing else may use the group, because calls are paired
    by their order.
    """

    requires_all_ranks = False  # a message involves two ranks only

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.world_size, self.device = dist.get_rank(group), dist.get_world_size(group), device
        self._group = group
        self._calls = CommThread(device)
        gloo = backend_of(group, device) == "gloo"
        self._messages_on = torch.device("cpu") if gloo else device  # Gloo sends messages from host memory only
        self._pinned = gloo and device.type == "cuda"  # a GPU copies asynchronously only to and from pinned memory
        self._first_bytes = FIRST_BYTES if gloo else 0  # with NCCL, a message must fill the receiver's buffer

    def start_allreduce(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, dist.ReduceOp.SUM)

    def start_max(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, dist.ReduceOp.MAX)

    def start_allgather(self, tensor: Tensor, equal: bool = False) -> Pending:
        return self._calls.submit(self._allgather, tensor, equal)

    def _starter(self) -> Start:
        return lambda peer_exchange: self._round(peer_exchange).wait

    def _reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        dist.all_reduce(tensor, op, self._group)
        return tensor

    def _allgather(self, tensor: Tensor, equal: bool) -> list[Tensor]:
        """Gather by messages between all pairs of ranks, because torch's all-gather requires equal lengths."""
        _record_use(tensor)
        peers = [rank for rank in range(self.world_size) if rank != self.rank]
        lengths = dict.fromkeys(peers, tensor.numel() if equal else None)
        peer_exchange = PeerExchange(dict.fromkeys(peers, tensor), lengths, tensor.dtype, headers=not equal)
        received = self._round(peer_exchange).wait()
        return [tensor.clone() if rank == self.rank else received[rank] for rank in range(self.world_size)]

    def _round(self, peer_exchange: PeerExchange) -> PendingMessages:
        """Start the messages of one round."""
        dtype = peer_exchange.dtype
        if peer_exchange.headers:
            return self._round_with_headers(peer_exchange.sends, peer_exchange.receives, dtype)
        receive_buffers = {peer: self._receive_buffer(n, dtype) for peer, n in peer_exchange.receives.items()}
        staged = {id(t): self._staged(t) for t in peer_exchange.sends.values()}  # once per tensor, not once per peer
        works = self._post({peer: staged[id(t)] for peer, t in peer_exchange.sends.items()}, receive_buffers)
        return PendingMessages(works, receive_buffers, dtype, self.device)

    def _round_with_headers(
        self, sends: dict[int, Tensor], peers: Iterable[int], dtype: torch.dtype
    ) -> PendingMessages:
        """Start messages with headers. This waits for the first part of each message.

        The first part holds the length and up to ``FIRST_BYTES`` of the message; a second part holds the rest. So a
        short message waits for the network once.
        """
        parts = {id(t): self._parts(t) for t in sends.values()}  # once per tensor, not once per peer
        firsts = {peer: self._receive_buffer(HEADER_BYTES + self._first_bytes, torch.uint8) for peer in peers}
        _wait(self._post({peer: parts[id(t)][0] for peer, t in sends.items()}, firsts))
        received = {peer: self._begun(first) for peer, first in firsts.items()}
        rests = {peer: message[self._first_bytes :] for peer, message in received.items()}
        works = self._post({peer: parts[id(t)][1] for peer, t in sends.items()}, rests)
        return PendingMessages(works, received, dtype, self.device)

    def _post(self, sends: dict[int, Tensor], receive_buffers: dict[int, Tensor]) -> Sequence[dist.Work]:
        """Post sends to peers, and receives into ``receive_buffers``. Empty messages are not sent.

        Receives are posted first. Gloo announces each receive to the sender over the stream that carries the data. If
        the announcement waited behind a large message, two peers would send one after the other, and would use half of
        the link.
        """
        operations = [self._operation(dist.irecv, t, peer) for peer, t in receive_buffers.items() if t.numel()]
        operations += [self._operation(dist.isend, t, peer) for peer, t in sends.items() if t.numel()]
        return dist.batch_isend_irecv(operations) if operations else []

    def _parts(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """The first part of a message, which starts with its length, and the rest, both as bytes."""
        content = self._staged(message).view(torch.uint8)
        header = torch.tensor([content.numel()]).view(torch.uint8).to(self._messages_on)
        return torch.cat([header, content[: self._first_bytes]]), content[self._first_bytes :]

    def _begun(self, first: Tensor) -> Tensor:
        """A buffer for a whole message, as bytes, into which its first part has been copied."""
        length, begin = int(first[:HEADER_BYTES].view(torch.int64)), first[HEADER_BYTES:]
        if length <= len(begin):
            return begin[:length]
        message = self._receive_buffer(length, torch.uint8)
        message[: len(begin)] = begin
        return message

    def _staged(self, message: Tensor) -> Tensor:
        """The message in memory that the backend can send from; if it is a copy, the copy is complete."""
        if not self._pinned:
            return _record_use(message)
        copy = self._receive_buffer(message.numel(), message.dtype).copy_(message, non_blocking=True)
        torch.cuda.current_stream(self.device).synchronize()
        return copy

    def _receive_buffer(self, entries: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(entries, dtype=dtype, device=self._messages_on, pin_memory=self._pinned)

    def _operation(self, call: Callable, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(call, as_integers(tensor), group=self._group, group_peer=peer)

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        dist.broadcast(tensor, group=self._group, group_src=root)

    def release(self) -> None:
        super().release()
        if self._group is not None:
            with suppress(ValueError):  # the script has already destroyed all groups
                dist.destroy_process_group(self._group)

    def close(self) -> None:
        self._calls.close()
        dist.destroy_process_group()


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _record_use(tensor: Tensor) -> Tensor:
    """Record that the current stream reads a tensor of another stream, and return it.

    If the tensor is freed, its memory is then reused only after this stream has read it.
    """
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor
