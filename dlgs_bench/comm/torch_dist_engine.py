"""torch.distributed: Gloo on CPU, NCCL on GPU (Gloo where several processes share one GPU)."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dlgs_bench.comm import Communicator, Pending, Start, words
from dlgs_bench.comm.collectives import HEADER_BYTES, PeerExchange
from dlgs_bench.comm.thread import CommThread
from dlgs_bench.engines import TIMEOUT_S

FIRST_BYTES = 2**16  # of a message of any length: what goes with the length, before its receiver knows how long it is


def connect(device: torch.device, shared: bool) -> "TorchDist":
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    backend = "nccl" if device.type == "cuda" and not shared else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    return TorchDist(device)


class TorchDist(Communicator):
    """``group``: the processes that take part, all if not given. Nobody else may use it: calls pair by order."""

    requires_all_ranks = False  # messages join two ranks each

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None):
        self.rank, self.world_size, self.device = dist.get_rank(group), dist.get_world_size(group), device
        self._group = group
        self._calls = CommThread(device)
        gloo = dist.get_backend(group) == "gloo"
        self._messages_on = torch.device("cpu") if gloo else device  # Gloo's go from the host's memory only
        self._pinned = gloo and device.type == "cuda"  # a GPU copies to and from pages that stay where they are
        self._first_bytes = FIRST_BYTES if gloo else 0  # NCCL brings only what fills the receiver's room

    def start_allreduce(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, dist.ReduceOp.SUM)

    def start_max(self, tensor: Tensor) -> Pending:
        return self._calls.submit(self._reduce, tensor, dist.ReduceOp.MAX)

    def start_allgather(self, tensor: Tensor, equal: bool = False) -> Pending:
        return self._calls.submit(self._allgather, tensor, equal)

    def _starter(self) -> Start:
        return self._round

    def _reduce(self, tensor: Tensor, op) -> Tensor:
        dist.all_reduce(tensor, op, self._group)
        return tensor

    def _allgather(self, tensor: Tensor, equal: bool) -> list[Tensor]:
        """Messages between all pairs: torch's all-gather wants equal lengths."""
        _read_here(tensor)
        peers = [rank for rank in range(self.world_size) if rank != self.rank]
        lengths = dict.fromkeys(peers, tensor.numel() if equal else None)
        received = self._round(PeerExchange(dict.fromkeys(peers, tensor), lengths, tensor.dtype, headers=not equal))()
        return [tensor.clone() if rank == self.rank else received[rank] for rank in range(self.world_size)]

    def _round(self, peer_exchange: PeerExchange) -> Callable[[], dict[int, Tensor]]:
        if peer_exchange.headers:
            return self._of_any_length(peer_exchange.sends, peer_exchange.receives, peer_exchange.dtype)
        receive_buffers = {
            peer: self._receive_buffer(entries, peer_exchange.dtype) for peer, entries in peer_exchange.receives.items()
        }
        parts = {id(t): self._staged(t) for t in peer_exchange.sends.values()}  # once, whatever the number of peers
        wait = self._messages({peer: parts[id(t)] for peer, t in peer_exchange.sends.items()}, receive_buffers)
        return self._after(wait, receive_buffers, peer_exchange.dtype)

    def _of_any_length(
        self, sends: dict[int, Tensor], peers: Iterable[int], dtype: torch.dtype
    ) -> Callable[[], dict[int, Tensor]]:
        """Messages whose receivers do not know how long they are; what it returns waits for them and returns them.

        The length goes first, and with it as much of the message as there is room for; what is left follows. So a short
        message waits for the network once.
        """
        parts = {id(t): self._parted(t) for t in sends.values()}  # once, whatever the number of peers
        firsts = {peer: self._receive_buffer(HEADER_BYTES + self._first_bytes, torch.uint8) for peer in peers}
        self._messages({peer: parts[id(t)][0] for peer, t in sends.items()}, firsts)()
        received = {peer: self._begun(first) for peer, first in firsts.items()}
        rests = {peer: message[self._first_bytes :] for peer, message in received.items()}
        wait = self._messages({peer: parts[id(t)][1] for peer, t in sends.items()}, rests)
        return self._after(wait, received, dtype)

    def _after(
        self, wait: Callable[[], None], received: dict[int, Tensor], dtype: torch.dtype
    ) -> Callable[[], dict[int, Tensor]]:
        def finish() -> dict[int, Tensor]:
            wait()
            return {peer: t.view(dtype).to(self.device, non_blocking=True) for peer, t in received.items()}

        return finish

    def _messages(self, sends: dict[int, Tensor], receive_buffers: dict[int, Tensor]) -> Callable[[], None]:
        """Begin to send to peers and to receive from others, into ``receive_buffers``; what it returns waits for
        these. The empty messages stay at home.

        Receives come first. Gloo tells the sender of each over the same stream as the data: told behind a large
        message of its own, two peers would send one after the other, over half of what a link can carry.
        """
        parts = [self._part(dist.irecv, t, peer) for peer, t in receive_buffers.items() if t.numel()]
        parts += [self._part(dist.isend, t, peer) for peer, t in sends.items() if t.numel()]
        works = dist.batch_isend_irecv(parts) if parts else []

        def finish() -> None:
            for work in works:
                work.wait()

        return finish

    def _parted(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """The length with what goes with it, and what is left, as bytes."""
        content = self._staged(message).view(torch.uint8)
        header = torch.tensor([content.numel()]).view(torch.uint8).to(self._messages_on)
        return torch.cat([header, content[: self._first_bytes]]), content[self._first_bytes :]

    def _begun(self, first: Tensor) -> Tensor:
        """The message that ``first`` begins, as bytes, with room for what is left of it."""
        length, begin = int(first[:HEADER_BYTES].view(torch.int64)), first[HEADER_BYTES:]
        if length <= len(begin):
            return begin[:length]
        message = self._receive_buffer(length, torch.uint8)
        message[: len(begin)] = begin
        return message

    def _staged(self, message: Tensor) -> Tensor:
        """The message where it can leave from; a copy is complete."""
        if not self._pinned:
            return _read_here(message)
        copy = self._receive_buffer(message.numel(), message.dtype).copy_(message, non_blocking=True)
        torch.cuda.current_stream(self.device).synchronize()
        return copy

    def _receive_buffer(self, entries: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(entries, dtype=dtype, device=self._messages_on, pin_memory=self._pinned)

    def _part(self, call: Callable, tensor: Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(call, words(tensor), group=self._group, group_peer=peer)

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        dist.broadcast(tensor, group=self._group, group_src=root)

    def release(self) -> None:
        super().release()
        if self._group is not None:
            with suppress(ValueError):  # the script has destroyed all groups
                dist.destroy_process_group(self._group)

    def close(self) -> None:
        self._calls.close()
        dist.destroy_process_group()


def _read_here(tensor: Tensor) -> Tensor:
    """Have this stream read a tensor of another one, which may then forget it, but not use its memory too early."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor
